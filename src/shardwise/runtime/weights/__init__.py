"""Weights: their descriptions, their files, and their quantised forms."""
