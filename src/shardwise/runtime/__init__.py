"""A plan in JAX: its mesh and shardings, the Transformer, one step of training.

Every step is one `shard_map` over the whole mesh, in which each chip computes on what it holds and
every collective is written down: the moves of an array are those that the planner derived from the
table of rules (`ops.sharded`), so the compiled program has the plan's collectives and no others.
The backward pass follows by differentiation, and with it its collectives: the transpose of an
AllGather is a ReduceScatter. `partitioned` has the other school, sharding constraints alone.
"""
