"""Attention and grouped matmuls, by the kernel of each platform or in plain JAX."""
