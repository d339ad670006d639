"""An operation of a compiled program in words, and lists of the largest operations."""
