"""Estimates: operations on a chip and its links become seconds, bytes and dollars.

In: the works of a step (`ops.program`), the chip, prices of collectives on the placed mesh.
Out: lower and upper bounds, and memory. Book §1 (rooflines), §5, §6. The formulas of the book
itself are in `formulas`. Layer 5. Every formula takes numbers or arrays of them.
"""
