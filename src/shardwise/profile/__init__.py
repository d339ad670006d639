"""Traces of `jax.profiler` read, and the time of a step attributed to its operations. Level 10."""
