"""Estimates: time and memory of a training step, or of one pass of an inference engine.

In: the program of a step (`ops.program`), the chip, costs of collectives on the placed mesh. Out:
lower and upper bounds of time, and memory. Book §1 (rooflines), §5, §6; the book's own formulas are
in `formulas`. Every function takes single numbers, or arrays with one element per layout.
"""
