"""Check of plans with XLA's compiler: compile a plan's program, and compare it with the plan.

`compiling` runs XLA's compilers in separate processes, `hlo` analyzes the programs that they
return, `timeline` estimates their time, and `user` checks a user's own function. JAX is imported
only by `compiling.worker`, and by `user.api` for a function that is compiled in this process.
"""
