"""Measured rates of the inference engine on this CPU, for plans of serving on it.

`rates` times the engine's own operations: products, attention, drawing. `server` times what a
server of a tiny model takes for each request, pass and sequence. Keys are names of figures of a
chip's file. Times are medians: a server runs for long, whatever else the machine does.
"""

from __future__ import annotations

from shardwise.serve.measure.rates import measure_rates
from shardwise.serve.measure.server import measure_server


def measure_serving() -> dict[str, float]:
    """Measure all figures of serving on one CPU device; takes about a minute.

    Raises:
        MissingExtra: a package that serving needs is not installed.
    """
    return {**measure_rates(), **measure_server()}
