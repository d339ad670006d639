"""Solutions of the cases, one file per chapter: each function maps given numbers to an answer."""
