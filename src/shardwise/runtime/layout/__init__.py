"""The JAX mesh of a plan and the sharding of arrays on it."""
