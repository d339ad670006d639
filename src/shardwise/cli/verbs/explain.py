"""`shardwise explain`: the form of training or that of serving."""

from shardwise.cli.verbs.training.explain import choose, run

__all__ = ["choose", "run"]
