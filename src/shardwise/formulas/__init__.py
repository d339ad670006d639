"""The textbook: formulas of the scaling book and of papers, as functions of numbers or arrays.

In: sizes, rates, degrees of a split; some take a chip, a machine or a model in their place.
Out: FLOPs, bytes, seconds, and the sizes from which a split pays. The book's chapters are solved by
these functions, and the planner calls them where it needs the same number. Layer 4, over `ops`.
"""
