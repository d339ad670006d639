"""Search: every legal strategy, evaluated at once, and the best of them.

In: a model, a system, the work. Out: ranked candidates (mesh, placement, remat) with their costs.
Layer 6. The formulas are those of `estimate`, run on arrays.
"""
