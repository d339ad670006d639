"""Mixture of experts: routing, and dispatch of tokens to experts and back."""
