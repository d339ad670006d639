"""Blocks of the Transformer, on the arrays of one chip."""
