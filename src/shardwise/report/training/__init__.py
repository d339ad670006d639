"""Training plans, sweeps, explanations and runs as text for the terminal."""
