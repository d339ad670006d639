"""Proof of a plan by the compiler that would run it, on a machine without its chips.

In: a plan or any jitted function, and the hardware. Out: what XLA makes of it: does it fit, which
collectives, FLOPs and bytes, how long it takes. Layer 8.
"""
