"""Search: evaluates every legal strategy as arrays and ranks them.

In: a model, a system, a workload. Out: ranked candidates (mesh, placement, remat) with their costs.
Layer 6. The formulas are those of `estimate`, with one array element per strategy.
"""
