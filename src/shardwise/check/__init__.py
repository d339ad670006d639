"""Proof by the real compiler: a plan's program is compiled, read and held against the plan.

`targets` says what a machine is to XLA, `environment` which compilers there are, `compile` runs one
compile in a process of its own, `hlo` reads what comes back, `timeline` times it. No module but
`worker` imports JAX.
"""
