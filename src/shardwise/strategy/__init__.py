"""A strategy: mesh axes with their sizes and physical links, and the table of sharding rules.

In: sizes of the mesh roles, a machine. Out: which mesh axes shard which dim (`rules`), and the
physical links that each mesh axis runs over (`mesh`). Book §3 (mesh and axes), §5 (what each role
shards). Level 2: depends on hardware, not on models.
"""
