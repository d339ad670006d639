"""The Transformer in JAX, under the mesh and the rules of a plan.

In: a plan. Out: programs that are compiled, trained with and served with. Level 7: imports the
rooms of the plan, and JAX.
"""
