"""Serving plans, sweeps and explanations as text for the terminal."""
