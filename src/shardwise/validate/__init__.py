"""Validation of the planner's predictions against published measurements.

Records of measurements are bundled (`data/`) or read from a file with the same schema. A record
with all necessary data becomes a `Run` (training) or a `ServeRun` (serving), any other a
`SkippedRecord` with the reason. The modules `predict` make predictions for runs; the modules
`score` compute the errors of the predictions.
"""

from shardwise.validate.records.files import SkippedRecord
from shardwise.validate.serving.runs import ServeRun
from shardwise.validate.serving.runs import load as load_serving
from shardwise.validate.training.runs import Run, load, read

__all__ = ["Run", "ServeRun", "SkippedRecord", "load", "load_serving", "read"]
