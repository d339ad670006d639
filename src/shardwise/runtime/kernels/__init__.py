"""Attention and grouped matmuls: kernels of each platform, and plain JAX where there is none."""
