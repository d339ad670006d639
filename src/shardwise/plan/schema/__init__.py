"""The values that a plan is made of."""
