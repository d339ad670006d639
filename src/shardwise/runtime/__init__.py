"""A plan in JAX: its mesh and shardings, the Transformer, one step of training or serving.

Every step is one `shard_map` over the whole mesh, in which each chip computes on its shards and
every collective is explicit. The runtime derives the collectives from the plan's sharding rules
with the planner's own code (`ops.sharded`), so the compiled program has the plan's collectives and
no others. The backward pass and its collectives follow by differentiation: the transpose of an
AllGather is a ReduceScatter. `training.partitioned` uses sharding constraints instead.
"""
