"""How far estimates of serving may be off, by kind of figure.

`bench/calibrate_serving.py` finds the values: a factor of 1 + spread either way holds 80 % of the
measurements of groups that its fit left out, each group with numbers fitted to the others.
Estimates for an engine that is not named are farther off.
"""

from __future__ import annotations

from shardwise.estimate.serving.overhead import UNKNOWN

# Of memory: nine in ten of the published figures, which are all of FasterTransformer. Throughput
# keeps what it had before chips waited for the busiest: that was found on the same few groups.
SPREADS = {"decode": 0.21, "ttft": 0.6, "latency": 0.12, "throughput": 0.32, "memory": 0.24}
UNKNOWN_SPREADS = {
    "decode": 0.23,
    "ttft": 0.87,
    "latency": 0.26,
    "throughput": 0.36,
    "memory": 0.24,
}


def spread(kind: str, engine: str) -> float:
    """Spread of a figure.

    Args:
        kind: "decode" (TPOT), "ttft", "latency" (of whole requests), "throughput" or "memory".
        engine: word of the serving engine.
    """
    return (UNKNOWN_SPREADS if engine == UNKNOWN.name else SPREADS)[kind]
