"""A plan, or any jitted function, proved with XLA's own compilers on a machine without the chips.

In: a builder of programs and a machine. Out: what the compiler made of it: memory, the scheduled
program, or why there is none. Level 8: imports `runtime` and what lies below. Only the worker of a
compile imports JAX, in a process of its own.
"""
