"""Training for the terminal: plans, explanations, sweeps, runs."""
