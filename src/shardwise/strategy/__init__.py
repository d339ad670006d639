"""A strategy: mesh axes with sizes and places on the hardware, and the table of sharding rules.

In: sizes of the roles, a system. Out: which mesh axes shard which dim (`rules`) and the physical
links that each mesh axis runs over (`mesh`). Book §3 (mesh and axes), §5 (what each role shards).
Layer 2: knows hardware, not models' arithmetic.
"""
