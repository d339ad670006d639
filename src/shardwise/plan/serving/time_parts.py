"""The time of a forward pass by its parts and by what can bound it, under the names of a plan."""

from __future__ import annotations

from typing import cast

from shardwise.arrays import Num
from shardwise.estimate.serving.load import decode_load
from shardwise.estimate.serving.pass_time import PassTime
from shardwise.estimate.serving.steady_state import in_flight
from shardwise.formulas import roofline
from shardwise.formulas.inference import speculative_tokens
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.plan.losses import nonzero
from shardwise.plan.schema.common import Range
from shardwise.plan.schema.serving import Bound
from shardwise.search.serving.candidate import Server
from shardwise.workload import cache_dtype_for

# Field of `PassTime` -> name of the part in a plan. The other parts of a pass are mesh roles.
ON_CHIP = {
    "matmuls": "weights",
    "decode_attention": "kv",
    "prefill_attention": "attention",
    "head": "unembedding",
    "elementwise": "elementwise",
    "kernels": "kernels",
    "draws": "drawing",
    "host": "host",
}
ROUNDING = 1e-9  # of TPOT; what sums of its parts are off by
MAX_BATCH = 2**20  # largest number of sequences that `kv_batch` tries


def parts(time: PassTime) -> dict[str, float]:
    """Part of a pass -> its seconds, for parts that take any; their sum is the time of the pass.

    Collectives count with what no work on the chip hides.
    """
    seconds: dict[str, Num] = {word: getattr(time, name) for name, word in ON_CHIP.items()}
    if float(time.comm_s):
        exposed = time.exposed_comm_s / time.comm_s
        seconds |= {role: role_s * exposed for role, role_s in time.traffic.items()}
    return nonzero(seconds)


def tpot_parts(
    server: Server, in_pass: float, tpot_s: float, *, prefills: bool
) -> dict[str, float]:
    """Part of TPOT -> its seconds per output token: those of a decoding pass, and what is between.

    Between passes, a draft model runs (`drafts`). What is left of TPOT is the time in which engines
    that prefill process prompts of other requests (`prompts`); where others prefill, it is the time
    in which a request waits for its KV cache and for a place (`waiting`).

    Args:
        in_pass: mean number of sequences of a pass.
        tpot_s: mean seconds per output token.
        prefills: whether these engines prefill, too.
    """
    job = server.job
    load = decode_load(in_pass, job.mean_context, 1 + job.drafted)
    n_tokens = float(speculative_tokens(job.acceptance, job.drafted))
    seconds = {
        part: part_s / n_tokens for part, part_s in parts(server.engine.pass_time(load)).items()
    }
    seconds["drafts"] = sum(seconds.values()) * job.drafted * job.draft_cost
    rest_s = tpot_s - sum(seconds.values())
    if rest_s > ROUNDING * tpot_s:
        seconds["prompts" if prefills else "waiting"] = rest_s
    return nonzero(seconds)


def sides(time: PassTime, *, compute_bound: bool) -> dict[str, float]:
    """What can bound a pass -> its seconds: weights, kv, flops, network and software.

    Args:
        compute_bound: whether FLOPs bound the matmuls; otherwise reading weights does.
    """
    seconds = {
        "weights": 0.0,
        "kv": float(time.decode_attention),
        "flops": float(time.prefill_attention),
        "network": float(time.comm_s),
        "software": float(time.elementwise + time.kernels + time.draws + time.host),
    }
    seconds["flops" if compute_bound else "weights"] += float(time.matmuls + time.head)
    return seconds


def largest(seconds: dict[str, float]) -> str:
    """The name that has the most seconds."""
    return max(seconds, key=lambda name: seconds[name])


def bound(time: PassTime, *, compute_bound: bool) -> Bound:
    """What takes longest of a pass: the largest of its `sides`."""
    return cast("Bound", largest(sides(time, compute_bound=compute_bound)))


def is_compute_bound(server: Server, batch: int) -> bool:
    """Whether FLOPs bound the matmuls of a decoding pass; otherwise reading weights does."""
    return float(in_flight(server.engine, batch)) > critical_batch(server.config, server)


def decode_sides(server: Server, batch: int) -> dict[str, float]:
    """The `sides` of a decoding pass of an engine with `batch` sequences."""
    return sides(server.decode(batch), compute_bound=is_compute_bound(server, batch))


def decode_range(server: Server, batch: int) -> Range:
    """Lower bound, expected and upper bound of the seconds of a decoding pass."""
    return _range(server.decode(batch, ideal=True), server.decode(batch))


def prefill_range(server: Server) -> Range:
    """Lower bound, expected and upper bound of the seconds of a prefill pass."""
    return _range(server.prefill(ideal=True), server.prefill())


def _range(ideal: PassTime, expected: PassTime) -> Range:
    serial_s = expected.local_s + expected.comm_s + expected.host
    # Measured rates are means of their own moments, and may exceed a peak that was measured.
    lower_s = min(float(ideal.local_s), float(expected.step_s))
    return Range(lower=lower_s, expected=float(expected.step_s), upper=float(serial_s))


def critical_batch(config: ModelConfig, server: Server) -> float:
    """Sequences of a pass above which FLOPs bound the matmuls. Book §7.

    e C / (2 W), with e bytes per weight, peak FLOP/s C and HBM bandwidth W. An MoE with k of E
    experts per token needs E / k times as many, speculative decoding fewer: each sequence has
    several tokens in a pass.
    """
    rates = server.rates
    peak = rates.chip.peak(rates.dtype(head=False))
    tokens = roofline.critical_batch(peak, rates.chip.need("hbm.bandwidth"), server.job.weights)
    sparsity = max((moe.n_experts / moe.experts_per_token for moe, _ in config.moes), default=1.0)
    return float(tokens) * sparsity / (1 + server.job.drafted)


def kv_batch(server: Server) -> int | None:
    """The fewest sequences of an engine for which reading KV caches takes longer than the matmuls.

    None if it never does: there are no caches, or FLOPs bound the matmuls, whose time then grows as
    fast as that of the caches. The number is found by bisection: there is no formula, since the
    share of an MoE's experts that a pass uses grows with the batch.
    """

    def caches_dominate(batch: int) -> bool:
        time = server.decode(batch)
        return bool(time.decode_attention >= time.matmuls + time.head)

    if not caches_dominate(MAX_BATCH):
        return None
    low = 0
    high = MAX_BATCH
    while high - low > 1:
        middle = (low + high) // 2
        if caches_dominate(middle):
            high = middle
        else:
            low = middle
    return high


def mesh_of(server: Server) -> dict[str, int]:
    """Size of each mesh role in one engine, except `data`: the number of engines."""
    return {**server.layout.sizes, "data": server.count}


def usual_cache(weights: str, chip: Chip | None) -> str:
    """The default dtype of the KV cache beside weights on a chip."""
    is_cpu = chip is not None and chip.kind == "cpu"
    return cache_dtype_for(weights, on_cpu=is_cpu)


def usual_compute(weights: str, chip: Chip | None) -> str:
    """The dtype of matmuls: that of the weights if the chip has a peak for it, otherwise bf16.

    CPUs compute in fp32, as the runtime does there. GPUs with 4-bit matmuls multiply MXFP4 weights
    by MXFP8 activations, as vLLM and TensorRT-LLM do.
    """
    if chip and chip.kind == "cpu":
        return "fp32"
    if chip and weights == "mxfp4" and "fp4" in chip.peak_flops_per_s:
        return "fp8"
    return weights if chip and weights in chip.peak_flops_per_s else "bf16"
