"""Thresholds between compute-bound and communication-bound: the book's inequalities, solved.

Each compares T_math with T_comms of one layer and solves for a planner's choice: tokens per chip,
a degree of parallelism, a width. Letters: alpha = C / W of the network that carries the split,
B tokens, D model width, F MLP width, X FSDP and Y tensor degree, M physical axes given to each.
Book §3 (strategies of one matmul), §5 (training), §12 (GPUs). `experts` and
`inference` have the thresholds of experts and of decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, sqrt
from shardwise.errors import UnknownName
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.models.count import flops
from shardwise.strategy.schedules import Times, find

SCOPES = ("hbm", "ici", "node", "scale_out", "dcn", "pcie")
MAX_MICROBATCHES = 1 << 14  # a bubble that needs more is never small


def alpha(chip: Chip, scope: str = "ici", dtype: str = "bf16") -> float:
    """alpha = C / W, FLOPs that a chip computes while one byte is sent. Book §5, §12.

    Args:
        chip: The chip.
        scope: `ici` (one axis, both directions), `node` (out of one GPU), `scale_out` (out of a
            whole node, over which arrays arrive sharded), `dcn` and `pcie` (a chip's share), `hbm`.
        dtype: Dtype of the arithmetic, which names the peak C.

    Returns:
        FLOPs per byte.

    Raises:
        UnknownName: Another scope.
        UnknownFigure: The chip has no figure for the scope.

    >>> from shardwise.hardware import find_chip
    >>> alpha(find_chip("v5p"))
    2550.0
    """
    if scope not in SCOPES:
        raise UnknownName("scope", scope, SCOPES)
    rates = {
        "hbm": ("hbm.bandwidth", 1.0),
        "ici": ("ici.link", 2.0),
        "node": ("node.egress", 1.0),
        "scale_out": ("scale_out.egress", 1.0),
        "dcn": ("dcn.bandwidth", 1.0),
        "pcie": ("pcie.bandwidth", 1.0),
    }
    name, factor = rates[scope]
    if scope == "scale_out":
        factor = chip.need("node.gpus")
    return chip.peak(dtype) / (factor * chip.need(name))


def data_parallel_tokens(
    alpha: Num,
    *,
    n_axes: Num = 1,
    n_experts: Num = 1,
    experts_per_token: Num = 1,
    replicas: Num = float("inf"),
    model_nodes: Num = 1,
) -> Num:
    """B/X > alpha / M * E / k * (X-1)/X: tokens per chip for compute-bound DP or FSDP.

    T_math = 8BDF/(XC) against T_comms = 8DF/W. Book §5, "data parallelism", §12.

    Args:
        alpha: C / W of the network that carries the traffic, FLOPs per byte.
        n_axes: Physical torus axes that share the traffic.
        n_experts, experts_per_token: E and k of an MoE: weights grow by E, FLOPs by k.
        replicas: X where it is small; a reduction over two nodes moves half the bytes.
        model_nodes: Nodes over which the model is sharded, each with its own network link.

    Returns:
        Tokens per chip.
    """
    exact = 1 - 1 / replicas
    return alpha / n_axes * n_experts / experts_per_token * exact / model_nodes


def max_chips(tokens: Num, tokens_per_chip: Num) -> Num:
    """Chips that a batch of `tokens` keeps compute-bound: B / (B/X). Book §5.

    >>> max_chips(2e6, 850)
    2352.9411764705883
    """
    return tokens / tokens_per_chip


def tensor_limit(
    d_ff: Num, alpha: Num, *, n_axes: Num = 1, element_bytes: Num = 2.0, inner: Num = 0
) -> Num:
    """Y < M F / alpha: the largest compute-bound tensor-parallel degree. Book §5, §12.

    T_math = 4BDF/(YC) against T_comms = 4BD/W in bf16: B and D cancel.

    Args:
        d_ff: F.
        alpha: C / W, with C the peak at the compute dtype.
        n_axes: Physical axes given to it.
        element_bytes: Bytes of the activations that are sent.
        inner: Chips of a fast domain if the axis spans exactly two of them: only Y - inner chips
            are reached over the slow network.
    """
    return n_axes * d_ff * 2.0 / (element_bytes * alpha) + inner


def tensor_width(degree: Num, alpha: Num, *, n_axes: Num = 1, inner: Num = 0) -> Num:
    """F > alpha (Y - inner) / M: the MLP width that Y-way tensor parallelism needs. Book §5."""
    return alpha * (degree - inner) / n_axes


def mixed_tokens(alpha: Num, d_ff: Num, *, axes: Num = 2, overlap: bool = False) -> Num:
    """Tokens per chip from which FSDP mixed with tensor parallelism is compute-bound. Book §5.

    B/N > 4 alpha^2 / (Mx My F) if the two communications run one after the other (the book's first
    edition), alpha^2 / (Mx My F) if they overlap (the later one); at the best split of N = X Y.

    Args:
        alpha: C / W_ici, FLOPs per byte.
        d_ff: F.
        axes: Mx My; 2 on a 3D torus.
        overlap: Whether the two communications overlap.
    """
    factor = 1.0 if overlap else 4.0
    return factor * alpha * alpha / (axes * d_ff)


def best_fsdp(n_chips: Num, tokens: Num, d_ff: Num, *, mx: Num = 2, my: Num = 1) -> Num:
    """X_opt = sqrt(B/F * Mx/My * N): the FSDP degree of least communication. Book §5.

    The two communications then take equally long; Y = N / X_opt.
    """
    return sqrt(tokens / d_ff * mx / my * n_chips)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedTimes:
    """Forward times of one layer under FSDP and tensor parallelism, seconds."""

    math_s: Num
    fsdp_s: Num
    tensor_s: Num

    @property
    def comms_s(self) -> Num:
        """The sum of the two communications, one after the other."""
        return self.fsdp_s + self.tensor_s


def mixed_times(
    tokens: Num,
    d_model: Num,
    d_ff: Num,
    *,
    fsdp: Num,
    tensor: Num,
    flops_per_s: Num,
    ici_bytes_per_s: Num,
    mx: Num = 2,
    my: Num = 1,
) -> MixedTimes:
    """T_math = 4BDF/(XYC), T_fsdp = 4DF/(Y W Mx), T_tp = 4BD/(X W My) in bf16. Book §5.

    Args:
        tokens, d_model, d_ff: B, D, F of a layer with two matrices.
        fsdp, tensor: X and Y.
        flops_per_s: C of one chip.
        ici_bytes_per_s: W of one axis, both directions.
        mx, my: Physical axes given to each.
    """
    return MixedTimes(
        math_s=4 * tokens * d_model * d_ff / (fsdp * tensor * flops_per_s),
        fsdp_s=4 * d_model * d_ff / (tensor * ici_bytes_per_s * mx),
        tensor_s=4 * tokens * d_model / (fsdp * ici_bytes_per_s * my),
    )


def reduce_output_limit(d_model: Num, alpha: Num) -> Num:
    """X < D / (2 alpha): shards of a summed dim up to which reducing the product is compute-bound.

    [B,D] . [D_X,F]: 2BDF/(XC) against an AllReduce of 4BF/W. Gathering the weights first is
    compute-bound iff B > alpha. Book §3, question 4.
    """
    return d_model / (2 * alpha)


def split_contraction_width(n_chips: Num, flops_per_s: Num, link_bytes_per_s_one_way: Num) -> Num:
    """D > n C / W: the summed dim that hides the exchange of partial sums over n chips. Book §1.

    T_math = 2BDF/(nC) against T_comms = 2BF/W over one direction of one link.
    """
    return n_chips * flops_per_s / link_bytes_per_s_one_way


def latency_bound_bytes(link_bytes_per_s_one_way: Num, hop_s: Num, *, shards: Num = 1) -> Num:
    """W T_min per shard: an array below this is bound by latency, not bandwidth. Book §3, §7."""
    return shards * link_bytes_per_s_one_way * hop_s


def attention_prefill_tokens(critical_intensity: Num, group: Num = 1) -> Num:
    """T > I (G+1)/G: prompt tokens from which attention itself is compute-bound. Book §7.

    I is C / W of HBM. TG/(G+1) is the intensity of attention where T = S and G query heads share
    a key head.
    """
    return critical_intensity * (group + 1) / group


def score_crossover(model: ModelConfig, *, against: str = "layers", causal: bool = False) -> float:
    """Sequence length at which attention scores cost as many FLOPs as the matmuls. Book §4.

    T = 8D for a gated MLP of 4D and full heads, 2D against the attention projections alone; twice
    that with causal masking. Sliding windows are ignored.

    Args:
        model: The model.
        against: `layers` (projections and MLP), `projections` or `mlp`.
        causal: Count half the square of scores.

    Raises:
        UnknownName: Another `against`.
    """
    per_token = flops(model, 1, causal=causal)
    matmuls = {
        "layers": per_token.attention + per_token.mamba + per_token.mlp + per_token.moe,
        "projections": per_token.attention,
        "mlp": per_token.mlp + per_token.moe,
    }
    if against not in matmuls:
        raise UnknownName("part of the FLOPs", against, matmuls)
    return float(matmuls[against] / per_token.scores)


def ring_tokens(
    alpha: Num, *, n_heads: Num, head_width: Num, kv_bytes: Num, causal: bool = True
) -> Num:
    """Tokens per chip from which ring attention hides the transfer of keys and values.

    t queries against t keys take 2 t^2 N (H + H_v) FLOPs, half of it under a causal mask; t keys
    and values of `kv_bytes` each arrive meanwhile: t > alpha kv_bytes / (2 N (H + H_v)). A
    sequence is longer by the number of chips in the ring. arXiv 2310.01889, section 3.

    Args:
        alpha: C / W of the links to the neighbours.
        n_heads: N.
        head_width: H + H_v, widths of a query and of a value.
        kv_bytes: bytes of the keys and values of one token in one layer.
        causal: whether half of the pairs are masked.
    """
    visible = 0.5 if causal else 1.0
    return alpha * kv_bytes / (2 * n_heads * head_width * visible)


def microbatches_for_bubble(
    share: float, *, stages: int, chunks: int = 1, schedule: str = "1f1b"
) -> int | None:
    """The fewest microbatches whose pipeline bubble is at most a share of the step.

    Assumes that the three passes of a chunk take equally long. None if no number suffices.

    >>> microbatches_for_bubble(0.1, stages=8)
    63
    """
    pipeline = find(schedule)
    times = Times(f=1.0, b=1.0, w=1.0)
    for microbatches in range(1, MAX_MICROBATCHES + 1):
        shape = (stages, microbatches, chunks)
        if not pipeline.legal(*shape):
            continue
        if pipeline.bubble(*shape, times) <= share * pipeline.step(*shape, times) * (1 + 1e-9):
            return microbatches
    return None
