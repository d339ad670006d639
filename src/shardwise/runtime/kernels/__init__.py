"""Attention and grouped products by the platform's kernel, with plain JAX beside them."""
