"""Mixtures of experts: routing, and the way of tokens to experts and back."""
