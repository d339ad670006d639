"""Compiles in processes of their own: what runs there, its limits, its failures, its cache."""
