"""`shardwise plan`: the form of training or that of serving."""

from shardwise.cli.verbs.training.plan import choose, run

__all__ = ["choose", "run"]
