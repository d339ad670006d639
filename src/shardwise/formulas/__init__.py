"""The textbook: formulas of the scaling book and of papers, as functions of numbers or arrays.

In: sizes, rates, degrees of parallelism; some functions take a chip, a machine or a model instead.
Out: FLOPs, bytes, seconds, and the sizes above which a layout is compute-bound. The chapters of the
book and the planner both call these functions. Level 4: imports `ops` and the levels below it.
"""
