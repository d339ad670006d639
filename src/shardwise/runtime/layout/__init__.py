"""The mesh of a plan in JAX, and where arrays lie on it."""
