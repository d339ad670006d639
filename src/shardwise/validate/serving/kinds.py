"""Kinds of metrics: what a published figure of serving measures."""

from __future__ import annotations

from shardwise.validate.serving.runs import ServeRun

# Metric -> kind. The kind of other metrics depends on the run, see `kind_of`.
_KINDS = {
    "tpot_s": "decode",
    "tokens_per_s_per_user": "decode",
    "ttft_s": "ttft",
    "prefill_s": "ttft",
    "latency_s": "latency",
    "memory_bytes": "memory",
}
KINDS = ("decode", "ttft", "latency", "throughput", "memory")
RATES = ("tokens_per_s", "total_tokens_per_s", "tokens_per_s_per_user")


def kind_of(run: ServeRun, metric: str) -> str:
    """Return the kind of a metric of a run, one of `KINDS`.

    The output rate of a run of decode steps only counts as decode, the total rate of a fixed batch
    as latency, and every other rate as throughput.
    """
    if metric in _KINDS:
        return _KINDS[metric]
    if run.phase == "decode":
        return "decode"
    return "latency" if metric == "total_tokens_per_s" and run.batch else "throughput"
