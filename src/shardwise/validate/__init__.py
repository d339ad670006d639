"""Published runs of others, turned into our values, to hold predictions against.

In: rows as their sources publish them (`data/`), or a file of the same schema. Out: a `Run` of
training or a `ServeRun` for each row that states enough, an `Underivable` with the reason for each
that does not (`runs`, `serving_runs`), and how far predictions are off (`predict` and `score`,
`serving_predict` and `serving_score`). Level 12: nothing below imports it.
"""

from shardwise.validate.records.files import Underivable
from shardwise.validate.serving.runs import ServeRun
from shardwise.validate.serving.runs import load as load_serving
from shardwise.validate.training.runs import Run, load, read

__all__ = ["Run", "ServeRun", "Underivable", "load", "load_serving", "read"]
