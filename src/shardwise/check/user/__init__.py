"""The compiler check of a user's own function."""
