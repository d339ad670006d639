"""Training plans in words."""
