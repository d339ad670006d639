"""The crossover table: from which size each kind of parallelism pays off, and the plan's size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.formulas import experts, thresholds
from shardwise.formulas.thresholds import alpha
from shardwise.hardware import Torus
from shardwise.models import ModelConfig, Moe
from shardwise.models.count import kv_elements
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import Layout
from shardwise.workload import Train

SMALL_BUBBLE = 0.1  # a pipeline bubble up to this share of a step is commonly called small


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """The threshold of one kind of parallelism for a model and a machine, and the plan's number.

    Args:
        split: the kind of parallelism: data, tensor, mixed (FSDP with tensor), expert, pipe,
            context or dcn (data over slices).
        quantity: what is compared, with its unit: "tokens per chip and microbatch".
        threshold: its value at the crossover.
        least: whether the threshold is a lower bound; otherwise it is an upper bound.
        own: the plan's value.
        met: whether the parallelism pays off at the plan's value.
        used: whether the plan uses the parallelism.
        degree: degree of the parallelism that the threshold is computed for; None if the threshold
            does not depend on it.
        formula: the formula, with its source in the book or a paper.
    """

    split: str
    quantity: str
    threshold: float
    least: bool
    own: float
    met: bool
    used: bool
    degree: int | None
    formula: str


def crossovers(case: Case) -> tuple[Crossover, ...]:
    """The thresholds of all kinds of parallelism that model and machine allow."""
    if case.system.n_chips == 1:
        return ()
    return (
        *_data(case),
        *_tensor(case),
        *_mixed(case),
        *_expert(case),
        *_pipe(case),
        *_context(case),
        *_dcn(case),
    )


def _crossover(
    split: str,
    quantity: str,
    threshold: float,
    size: float,
    formula: str,
    *,
    used: bool,
    at_least: bool = True,
    degree: int | None = None,
) -> Crossover:
    met = size <= threshold
    if at_least:
        met = size >= threshold
    return Crossover(
        split=split,
        quantity=quantity,
        threshold=float(threshold),
        least=at_least,
        own=float(size),
        met=bool(met),
        used=used,
        degree=degree,
        formula=formula,
    )


def torus_axes(topology: Torus) -> tuple[float, int]:
    """(number of rings, number of axes) of a torus; an axis without wraparound is half a ring."""
    n_rings = 0.0
    n_axes = 0
    for length, wraps in zip(topology.shape, topology.wrapped, strict=True):
        if length > 1:
            n_axes += 1
            n_rings += 1.0 if wraps else 0.5
    return n_rings, n_axes


def outer_network(case: Case) -> str:
    """The slowest network that a collective over the whole machine or slice uses."""
    topology = case.system.topology
    if isinstance(topology, Torus):
        return "ici"
    return "scale_out" if topology.n_nodes > 1 else "node"


def inner_network(case: Case) -> str:
    """The fastest network between chips."""
    return "ici" if isinstance(case.system.topology, Torus) else "node"


def tokens_per_chip(job: Train, layout: Layout) -> float:
    """Tokens per chip and microbatch, since weights are gathered for every microbatch.

    All chips that hold the same stage share the tokens; stages of a pipeline share layers.
    """
    mesh = layout.mesh
    return job.tokens_per_step / (mesh.n_chips / mesh.pipe) / layout.n_microbatches


def _n_data_ranks(case: Case) -> int:
    mesh = case.layout.mesh
    return mesh.data * mesh.fsdp * mesh.expert


def active_width(model: ModelConfig) -> int:
    """Feed-forward width that a token activates in the most common block.

    For an MoE it is the sum over the token's experts, routed and shared.
    """
    ffn = model.main_ffn
    if isinstance(ffn, Moe):
        return ffn.experts_per_token * ffn.d_ff + ffn.d_ff_shared
    return model.d_ff


def _experts(model: ModelConfig) -> tuple[int, int]:
    """E and k of a model; 1 and 1 if it is dense."""
    return (model.n_experts, model.experts_per_token) if model.is_moe else (1, 1)


def _data(case: Case) -> Iterator[Crossover]:
    topology = case.system.topology
    n_rings = 1.0
    if isinstance(topology, Torus):
        n_rings = torus_axes(topology)[0]
    formula = "B/X > alpha / M, book §5"
    if case.model.is_moe:
        formula = "B/X > alpha / M E/k, book §5"
    n_experts, experts_per_token = _experts(case.model)
    threshold = thresholds.data_parallel_tokens(
        alpha(case.system.chip, outer_network(case), case.job.compute),
        n_axes=n_rings,
        n_experts=n_experts,
        experts_per_token=experts_per_token,
    )
    yield _crossover(
        "data",
        "tokens per chip and microbatch",
        threshold,
        tokens_per_chip(case.job, case.layout),
        formula,
        used=_n_data_ranks(case) > 1,
    )


def _tensor(case: Case) -> Iterator[Crossover]:
    threshold = thresholds.tensor_limit(
        active_width(case.model),
        alpha(case.system.chip, inner_network(case), case.job.compute),
        element_bytes=case.job.activation_bytes,
    )
    tensor = case.layout.mesh.tensor
    yield _crossover(
        "tensor",
        "degree on one axis",
        threshold,
        tensor,
        "Y < M F / alpha, book §5",
        used=tensor > 1,
        at_least=False,
    )


def _mixed(case: Case) -> Iterator[Crossover]:
    topology = case.system.topology
    if not isinstance(topology, Torus):
        return
    n_axes = torus_axes(topology)[1]
    if n_axes < 2:
        return
    n_experts, experts_per_token = _experts(case.model)
    threshold = thresholds.mixed_tokens(
        alpha(case.system.chip, "ici", case.job.compute),
        active_width(case.model),
        axes=n_axes - 1,  # those of FSDP; one is left for tensor
        n_experts=n_experts,
        experts_per_token=experts_per_token,
    )
    yield _crossover(
        "mixed",
        "tokens per chip and microbatch",
        threshold,
        tokens_per_chip(case.job, case.layout),
        f"B/N > 4 alpha^2 / (Mx My F){' E/k' * case.model.is_moe}, book §5",
        used=case.layout.mesh.tensor > 1 and _n_data_ranks(case) > 1,
    )


def _expert(case: Case) -> Iterator[Crossover]:
    ffn = case.model.main_ffn
    topology = case.system.topology
    if not isinstance(ffn, Moe):
        return
    planned = case.layout.expert_degree
    chip = case.system.chip
    dtype = case.job.compute
    if isinstance(topology, Torus):
        degree = planned if planned > 1 else min(ffn.n_experts, max(topology.shape))
        threshold = experts.expert_width_on_ring(alpha(chip, "ici", dtype), degree)
        formula = "F > alpha Z / 4, book §3"
    else:
        domain = topology.gpus_per_node
        degree = planned if planned > 1 else min(ffn.n_experts, domain)
        network = "node"
        crossed_domain = 0
        formula = "F > alpha (Z-1)/Z, book §12"
        if degree > domain:
            network = "scale_out"
            crossed_domain = domain
            formula = f"F > alpha (Z-{domain})/k min({domain}k/Z, 1), book §12"
        threshold = experts.expert_width(
            alpha(chip, network, dtype),
            degree,
            experts_per_token=ffn.experts_per_token,
            domain=crossed_domain,
        )
    yield _crossover(
        "expert",
        "width of an expert",
        threshold,
        ffn.d_ff,
        formula,
        used=planned > 1,
        degree=degree,
    )


def _pipe(case: Case) -> Iterator[Crossover]:
    layout = case.layout
    is_pipelined = layout.mesh.pipe > 1
    stages = 2
    n_chunks = 1
    schedule = "1f1b"
    if is_pipelined:
        from shardwise.strategy.schedules import find

        stages = layout.mesh.pipe
        schedule = layout.schedule
        n_chunks = find(schedule).chunks or layout.virtual
    threshold = thresholds.microbatches_for_bubble(
        SMALL_BUBBLE, stages=stages, chunks=n_chunks, schedule=schedule
    )
    if threshold is not None:
        yield _crossover(
            "pipe",
            "microbatches",
            threshold,
            layout.n_microbatches,
            f"bubble of {schedule} below {SMALL_BUBBLE:.0%}, arXiv 2104.04473",
            used=is_pipelined,
            degree=stages,
        )


def _context(case: Case) -> Iterator[Crossover]:
    attention = case.model.main_attention
    if not attention:
        return
    degree = max(2, case.layout.mesh.context)
    tokens = thresholds.ring_tokens(
        alpha(case.system.chip, inner_network(case), case.job.compute),
        n_heads=attention.n_heads,
        head_width=attention.d_head + attention.d_head_v,
        kv_bytes=kv_elements(attention) * case.job.activation_bytes,
        causal=attention.causal,
    )
    yield _crossover(
        "context",
        "sequence length",
        degree * tokens,
        case.job.seq,
        "T/Z > alpha kv bytes / (N (H + Hv)), arXiv 2310.01889",
        used=case.layout.mesh.context > 1,
        degree=degree,
    )


def _dcn(case: Case) -> Iterator[Crossover]:
    if case.system.n_slices == 1:
        return
    # Gradients are reduced once a step, however many microbatches it has.
    yield _crossover(
        "dcn",
        "tokens per slice",
        alpha(case.system.chip, "dcn", case.job.compute),
        case.job.tokens_per_step / case.system.n_slices,
        "B/X > C / W of DCN, book §5",
        used=True,
    )
