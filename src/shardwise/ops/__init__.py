"""Operations: sharded einsums, the collectives they need, and the layers of a Transformer.

In: a model's weights as named dims, a table of sharding rules, the links under each mesh axis.
Out: ordered operations with FLOPs, HBM bytes and network bytes. Book §3 (four cases, collectives)
and §4 (what a Transformer computes). Layer 3.
"""
