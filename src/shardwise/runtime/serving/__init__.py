"""The prefill and decode steps of a serving plan, and the KV caches that both use."""
