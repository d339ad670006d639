"""Serving plans in words."""
