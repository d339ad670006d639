"""Weights: descriptions of the arrays, files of published weights, and quantized arrays."""
