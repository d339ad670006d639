"""Serving for the terminal: plans, explanations, sweeps, traffic."""
