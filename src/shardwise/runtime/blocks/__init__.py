"""The Transformer's blocks, as functions of one chip's shards."""
