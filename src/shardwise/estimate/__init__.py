"""Estimates: time and memory of a training step, or of a pass of an inference engine.

In: the program of a step (`ops.program`), the chip, costs of collectives on the placed mesh. Out:
lower and upper bounds of time, and memory. Book §1 (rooflines), §5, §6; the book's own formulas are
in `formulas`. Every formula takes numbers or arrays of them.
"""
