"""Check of a user's own function with XLA's compiler."""
