"""Thresholds between compute-bound and communication-bound: the book's inequalities, solved.

Each function compares T_math with T_comms of one layer and solves for what a planner chooses:
tokens per chip, a degree of parallelism, a width. Letters: C FLOP/s of a chip, W bytes/s of the
network that carries the communication, alpha = C / W in FLOPs per byte, B tokens, D model width, F
MLP width, X degree of data parallelism or FSDP, Y degree of tensor parallelism, N = X Y chips, M
number of physical torus axes that a mesh axis uses. Book §3 (strategies of one matmul), §5
(training), §12 (GPUs). The thresholds of experts are in `experts`, those of decoding in
`inference`.
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
MAX_MICROBATCHES = 1 << 14  # the most that `microbatches_for_bubble` tries


def alpha(chip: Chip, scope: str = "ici", dtype: str = "bf16") -> float:
    """alpha = C / W: FLOPs that a chip computes while one byte is sent. Book §5, §12.

    Args:
        chip: The chip.
        scope: The bandwidth W: `ici` (one axis, both directions), `node` (out of one GPU, inside
            its node), `scale_out` (out of a whole node, since arrays are sharded over its GPUs),
            `dcn` or `pcie` (one chip's share), `hbm`.
        dtype: Dtype of the arithmetic, at which C is the peak.

    Returns:
        FLOPs per byte.

    Raises:
        UnknownName: The scope is unknown.
        UnknownFigure: No public source gives the chip's bandwidth for this scope.

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
    """Tokens per chip, B/X, above which data parallelism or FSDP is compute-bound. Book §5, §12.

    alpha / M * E / k * (X-1)/X, from T_math = 8BDF/(XC) and T_comms = 8DF/W.

    Args:
        alpha: C / W of the network that carries the traffic, FLOPs per byte.
        n_axes: M, physical torus axes that share the traffic.
        n_experts, experts_per_token: E and k of an MoE: weights grow by E, FLOPs by k.
        replicas: X, which matters if it is small: a reduction over two replicas moves half as many
            bytes as one over many.
        model_nodes: Nodes over which the model is sharded, each with its own network link.
    """
    sent_share = 1 - 1 / replicas
    return alpha / n_axes * n_experts / experts_per_token * sent_share / model_nodes


def max_chips(tokens: Num, tokens_per_chip: Num) -> Num:
    """The most chips on which a batch is compute-bound, at this many tokens per chip. Book §5.

    >>> max_chips(2e6, 850)
    2352.9411764705883
    """
    return tokens / tokens_per_chip


def tensor_limit(
    d_ff: Num, alpha: Num, *, n_axes: Num = 1, element_bytes: Num = 2.0, inner: Num = 0
) -> Num:
    """The largest compute-bound degree of tensor parallelism: Y = M F / alpha. Book §5, §12.

    From T_math = 4BDF/(YC) and T_comms = 4BD/W in bf16: B and D cancel.

    Args:
        d_ff: F.
        alpha: C / W, with C the peak at the compute dtype.
        n_axes: M, physical axes that tensor parallelism uses.
        element_bytes: Bytes per element of the activations that are sent.
        inner: Chips of one node if tensor parallelism spans exactly two nodes, else 0: only
            Y - inner chips are reached over the slower network.
    """
    return n_axes * d_ff * 2.0 / (element_bytes * alpha) + inner


def tensor_width(degree: Num, alpha: Num, *, n_axes: Num = 1, inner: Num = 0) -> Num:
    """F above which Y-way tensor parallelism is compute-bound: alpha (Y - inner) / M. Book §5.

    `inner` as in `tensor_limit`.
    """
    return alpha * (degree - inner) / n_axes


def mixed_tokens(
    alpha: Num,
    d_ff: Num,
    *,
    axes: Num = 2,
    overlap: bool = False,
    n_experts: Num = 1,
    experts_per_token: Num = 1,
) -> Num:
    """Tokens per chip above which FSDP mixed with tensor parallelism is compute-bound. Book §5.

    At the best split of N = X Y chips, B/N is 4 alpha^2 / (Mx My F) if the communication of FSDP
    and that of tensor parallelism run one after the other (the book's first edition), and
    alpha^2 / (Mx My F) if they overlap (its later edition). FSDP gathers the weights of all experts
    and a token uses k of them, so that an MoE has E / k times as many.

    Args:
        alpha: C / W_ici, FLOPs per byte.
        d_ff: F.
        axes: Mx My, torus axes of FSDP times those of tensor parallelism; 2 on a 3D torus.
        overlap: Whether the two communications overlap.
        n_experts, experts_per_token: E and k of an MoE.
    """
    factor = 1.0 if overlap else 4.0
    return factor * alpha * alpha / (axes * d_ff) * n_experts / experts_per_token


def best_fsdp(n_chips: Num, tokens: Num, d_ff: Num, *, mx: Num = 2, my: Num = 1) -> Num:
    """FSDP degree at which FSDP with tensor parallelism communicates least. Book §5.

    X_opt = sqrt(B/F * Mx/My * N), with Y = N / X_opt. The communication of FSDP then takes as long
    as that of tensor parallelism.
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
        """Seconds of both communications, one after the other."""
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
    """Forward times of one layer under X-way FSDP and Y-way tensor parallelism, in bf16. Book §5.

    T_math = 4BDF/(XYC), T_fsdp = 4DF/(Y W Mx), T_tensor = 4BD/(X W My).

    Args:
        tokens, d_model, d_ff: B, D, F of a layer with two matrices.
        fsdp, tensor: X and Y.
        flops_per_s: C of one chip.
        ici_bytes_per_s: W of one axis, both directions.
        mx, my: Physical torus axes that FSDP and tensor parallelism use.
    """
    return MixedTimes(
        math_s=4 * tokens * d_model * d_ff / (fsdp * tensor * flops_per_s),
        fsdp_s=4 * d_model * d_ff / (tensor * ici_bytes_per_s * mx),
        tensor_s=4 * tokens * d_model / (fsdp * ici_bytes_per_s * my),
    )


def reduce_output_limit(d_model: Num, alpha: Num) -> Num:
    """Most shards of a summed dim at which reducing the product is compute-bound: D / (2 alpha).

    For [B,D] . [D_X,F], T_math = 2BDF/(XC) and the AllReduce takes 4BF/W. The other strategy,
    gathering the weights first, is compute-bound iff B > alpha. Book §3, question 4.
    """
    return d_model / (2 * alpha)


def split_contraction_width(n_chips: Num, flops_per_s: Num, link_bytes_per_s_one_way: Num) -> Num:
    """D above which a matmul sharded n ways over its summed dim is compute-bound: n C / W. Book §1.

    From T_math = 2BDF/(nC) and T_comms = 2BF/W to exchange the partial sums over one direction of
    one link.
    """
    return n_chips * flops_per_s / link_bytes_per_s_one_way


def latency_bound_bytes(link_bytes_per_s_one_way: Num, hop_s: Num, *, shards: Num = 1) -> Num:
    """Bytes below which a collective is bound by the latency of hops. Book §3, §7.

    W T_min per shard, with T_min = `hop_s`; for an array of several shards, times `shards`.
    """
    return shards * link_bytes_per_s_one_way * hop_s


def attention_prefill_tokens(critical_intensity: Num, group: Num = 1) -> Num:
    """Prompt tokens above which the attention core is compute-bound: I (G+1)/G. Book §7.

    I is C / W of HBM. Attention of T queries to T keys, with G query heads per key head, has
    TG/(G+1) FLOPs per byte.
    """
    return critical_intensity * (group + 1) / group


def score_crossover(model: ModelConfig, *, against: str = "layers", causal: bool = False) -> float:
    """Sequence length at which the attention core takes as many FLOPs as other matmuls. Book §4.

    It is 8D for a gated MLP of width 4D and as many key heads as query heads, and 2D against the
    attention projections alone; with a causal mask twice as long. Sliding windows are ignored.

    Args:
        model: The model.
        against: The other matmuls: `layers` (projections and MLP), `projections` or `mlp`.
        causal: Whether half of the scores are masked and not counted.

    Raises:
        UnknownName: `against` is unknown.
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
    """Tokens per chip above which ring attention hides the transfer of keys and values.

    Attention of a chip's t queries to t keys takes 2 t^2 N (H + H_v) FLOPs, half as many under a
    causal mask. Meanwhile the next t keys and values arrive, `kv_bytes` per token, so that
    t = alpha kv_bytes / (2 N (H + H_v)). The whole sequence has t tokens times the chips of the
    ring. arXiv 2310.01889, section 3.

    Args:
        alpha: C / W of the links to the neighbours.
        n_heads: N.
        head_width: H + H_v, width of a query plus width of a value.
        kv_bytes: bytes of the keys and values of one token in one layer.
        causal: whether half of the (query, key) pairs are masked.
    """
    visible_share = 0.5 if causal else 1.0
    return alpha * kv_bytes / (2 * n_heads * head_width * visible_share)


def microbatches_for_bubble(
    share: float, *, stages: int, chunks: int = 1, schedule: str = "1f1b"
) -> int | None:
    """The fewest microbatches whose pipeline bubble is at most `share` of the step.

    None if `MAX_MICROBATCHES` are too few. Assumes that a chunk's forward pass, the gradient of its
    input and the gradient of its weights take equally long.

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
