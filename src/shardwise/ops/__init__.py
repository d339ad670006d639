"""Operations: sharded einsums, the collectives they need, and the layers of a Transformer.

In: a model, a table of sharding rules, the links of each mesh axis. Out: matmuls and collectives in
order, with FLOPs, HBM bytes and network bytes. Book §3 (four cases, collectives), §4 (what a
Transformer computes). Level 3: depends on models and strategies.
"""
