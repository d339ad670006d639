"""The prefill and decode steps of a plan, and the caches that they share."""
