"""Check of plans by the real compiler: a program is compiled, parsed and compared with its plan.

`compiling` runs XLA's compilers in processes of their own, `hlo` parses what they return,
`timeline` times it, `user` does the same for a function. Only `compiling.worker`, and `user.api`
for a function in this process, import JAX.
"""
