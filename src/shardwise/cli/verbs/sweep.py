"""`shardwise sweep`: the form of training or that of serving."""

from shardwise.cli.verbs.training.sweep import choose, run

__all__ = ["choose", "run"]
