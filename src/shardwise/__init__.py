"""Shardwise: how to scale a Transformer, planned and proved."""
