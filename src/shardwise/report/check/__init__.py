"""Compiler checks for the terminal: of plans and of a user's function."""
