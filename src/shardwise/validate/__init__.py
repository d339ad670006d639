"""Published runs of others, turned into our values, to hold predictions against.

In: rows as their sources publish them (`data/`), or a file of the same schema. Out: a `Run` for
each row that states enough, an `Underivable` with the reason for each that does not (`runs`), and
how far predictions are off (`predict`, `score`). Level 11: nothing below imports it.
"""

from shardwise.validate.runs import Run, Underivable, load, read

__all__ = ["Run", "Underivable", "load", "read"]
