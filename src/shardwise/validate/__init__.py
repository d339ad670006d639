"""Published measurements of training and serving, and the errors of predictions of them.

Records are bundled (`data/`) or read from a file of the same schema. A record that states enough
becomes a `Run` (training) or a `ServeRun`, any other a `SkippedRecord` with the reason (`runs`).
`predict` and `score` give the predictions and their errors.
"""

from shardwise.validate.records.files import SkippedRecord
from shardwise.validate.serving.runs import ServeRun
from shardwise.validate.serving.runs import load as load_serving
from shardwise.validate.training.runs import Run, load, read

__all__ = ["Run", "ServeRun", "SkippedRecord", "load", "load_serving", "read"]
