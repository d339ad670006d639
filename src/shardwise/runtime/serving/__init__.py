"""The prefill and decode steps of a plan, and the KV caches that they share."""
