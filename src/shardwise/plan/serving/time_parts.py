"""What a pass spends its time on, under the names that a plan, its reasons and its bars use."""

from __future__ import annotations

from shardwise.estimate.serving.pass_time import PassTime
from shardwise.formulas import roofline
from shardwise.hardware import Chip
from shardwise.models import ModelConfig, Moe
from shardwise.plan.schema.common import Range
from shardwise.search.serving.candidate import Server

# Parts of a pass on the chip, in the words of a plan; the other parts are roles of the mesh.
ON_CHIP = {
    "weights": "weights",
    "caches": "kv",
    "prompts": "attention",
    "head": "unembedding",
    "elementwise": "elementwise",
    "kernels": "kernels",
    "host": "host",
}
MOST_BATCH = 2**20  # sequences up to which batches are compared


def parts(time: PassTime) -> dict[str, float]:
    """Seconds by what spends them, without what takes none; the sum is the pass."""
    found = {word: float(getattr(time, name)) for name, word in ON_CHIP.items()}
    found |= {role: float(seconds) for role, seconds in time.traffic.items()}
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def sides(time: PassTime, *, flops: bool) -> dict[str, float]:
    """Seconds of everything that can bind a pass, by name; the sum is the pass.

    Args:
        flops: products take longer to multiply than to read.
    """
    sums = {
        "weights": 0.0,
        "kv": float(time.caches),
        "flops": float(time.prompts),
        "network": float(time.comm_s),
        "software": float(time.elementwise + time.kernels + time.host),
    }
    sums["flops" if flops else "weights"] += float(time.weights + time.head)
    return sums


def bound(time: PassTime, *, flops: bool) -> str:
    """What takes longest: one of `sides`, with the same arguments."""
    sums = sides(time, flops=flops)
    return max(sums, key=lambda name: sums[name])


def decode_range(server: Server, batch: int) -> Range:
    """Of one pass: all communication hidden at peak rates, expected, nothing hidden."""
    return _range(server.decode(batch, ideal=True), server.decode(batch))


def prefill_range(server: Server) -> Range:
    """The same of a prompt."""
    return _range(server.prefill(ideal=True), server.prefill())


def _range(ideal: PassTime, expected: PassTime) -> Range:
    serial = expected.local_s + expected.comm_s + expected.host
    return Range(lower=float(ideal.local_s), expected=float(expected.step_s), upper=float(serial))


def critical_batch(config: ModelConfig, server: Server) -> float:
    """Sequences of a pass from which products are bound by FLOPs: e C / (2 W), times E / k of an
    MoE, over the tokens that each sequence puts in. Book §7."""
    rates, job = server.rates, server.job
    peak = rates.chip.peak(rates.dtype(head=False))
    rows = roofline.critical_batch(peak, rates.chip.need("hbm.bandwidth"), job.weights)
    ratios = [
        g.layer.ffn.n_experts / g.layer.ffn.experts_per_token
        for g in config.groups
        if isinstance(g.layer.ffn, Moe)
    ]
    return float(rows) * max(ratios, default=1.0) / (1 + job.drafted)


def kv_batch(server: Server) -> int | None:
    """The fewest sequences of an engine whose caches take longer than all products.

    None without caches, or where products grow as fast as caches: bound by FLOPs at long batches.
    The share of a mixture's experts that a pass reads grows with the batch, so it is searched.
    """

    def outweighs(batch: int) -> bool:
        took = server.decode(batch)
        return bool(took.caches >= took.weights + took.head)

    if not outweighs(MOST_BATCH):
        return None
    low, high = 0, MOST_BATCH
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if outweighs(middle) else (middle, high)
    return high


def mesh_of(server: Server) -> dict[str, int]:
    """The mesh of all engines of a kind; `data` counts them."""
    return {**server.layout.sizes, "data": server.count}


def usual_compute(weights: str, chip: Chip | None) -> str:
    """The dtype of products: that of the weights where the chip has a peak for it, else bf16."""
    return weights if chip and weights in chip.peak_flops_per_s else "bf16"
