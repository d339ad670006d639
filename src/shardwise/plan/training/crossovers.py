"""The crossover table: from which size each kind of parallelism pays, and where the plan stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.formulas import experts, thresholds
from shardwise.formulas.thresholds import alpha
from shardwise.hardware import Torus
from shardwise.models import ModelConfig, Moe
from shardwise.search.training.problem import Case

BUBBLE = 0.1  # share of a step that a pipeline may wait: what is commonly called small


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """One threshold for this model on this hardware.

    Args:
        split: the kind of parallelism: data, tensor, mixed, expert, pipe, context or dcn.
        quantity: what is compared.
        threshold: its size at the crossover.
        least: the plan's number must be at least this; else at most.
        own: the plan's number.
        met: the plan is on the side that pays.
        used: the plan splits so.
        degree: the degree that the threshold is for, where it depends on one.
        formula: with a section of the book or a paper.
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
    """Every threshold that the model and the machine have."""
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


def _row(
    split: str,
    quantity: str,
    threshold: float,
    own: float,
    formula: str,
    *,
    used: bool,
    least: bool = True,
    degree: int | None = None,
) -> Crossover:
    return Crossover(
        split=split,
        quantity=quantity,
        threshold=float(threshold),
        least=least,
        own=float(own),
        met=bool(own >= threshold if least else own <= threshold),
        used=used,
        degree=degree,
        formula=formula,
    )


def axes(topology: Torus) -> tuple[float, int]:
    """(rings that carry traffic, a line counts half; torus axes longer than 1)."""
    there = [w for n, w in zip(topology.shape, topology.wrapped, strict=True) if n > 1]
    return sum(1.0 if wraps else 0.5 for wraps in there), len(there)


def scope(case: Case) -> str:
    """The network that gathers over the whole machine cross."""
    topology = case.system.topology
    if isinstance(topology, Torus):
        return "ici"
    return "scale_out" if topology.n_nodes > 1 else "node"


def inner_scope(case: Case) -> str:
    """The network that lies closest."""
    return "ici" if isinstance(case.system.topology, Torus) else "node"


def tokens_per_chip(case: Case) -> float:
    """Of one microbatch: weights are gathered for each."""
    return case.job.tokens_per_step / case.system.n_chips / case.layout.n_microbatches


def _data_ranks(case: Case) -> int:
    mesh = case.layout.mesh
    return mesh.data * mesh.fsdp * mesh.expert


def active_width(model: ModelConfig) -> int:
    """Widths of the feed-forward blocks that a token goes through in the most common block."""
    ffn = model.main_ffn
    if isinstance(ffn, Moe):
        return ffn.experts_per_token * ffn.d_ff + ffn.d_ff_shared
    return model.d_ff


def _data(case: Case) -> Iterator[Crossover]:
    chip, topology, model = case.system.chip, case.system.topology, case.model
    n_axes = axes(topology)[0] if isinstance(topology, Torus) else 1.0
    experts = (model.n_experts, model.experts_per_token) if model.is_moe else (1, 1)
    limit = thresholds.data_parallel_tokens(
        alpha(chip, scope(case), case.job.compute),
        n_axes=n_axes,
        n_experts=experts[0],
        experts_per_token=experts[1],
    )
    yield _row(
        "data",
        "tokens per chip and microbatch",
        limit,
        tokens_per_chip(case),
        "B/X > alpha / M" + (" E/k" if model.is_moe else "") + ", book §5",
        used=_data_ranks(case) > 1,
    )


def _tensor(case: Case) -> Iterator[Crossover]:
    at = alpha(case.system.chip, inner_scope(case), case.job.compute)
    limit = thresholds.tensor_limit(
        active_width(case.model), at, element_bytes=case.job.activation_bytes
    )
    own = case.layout.mesh.tensor
    formula = "Y < M F / alpha, book §5"
    yield _row("tensor", "degree on one axis", limit, own, formula, used=own > 1, least=False)


def _mixed(case: Case) -> Iterator[Crossover]:
    topology = case.system.topology
    if not isinstance(topology, Torus) or axes(topology)[1] < 2:
        return
    at = alpha(case.system.chip, "ici", case.job.compute)
    product = axes(topology)[1] - 1  # one axis for tensor, the others for FSDP
    limit = thresholds.mixed_tokens(at, active_width(case.model), axes=product)
    formula = "B/N > 4 alpha^2 / (Mx My F), book §5"
    both = case.layout.mesh.tensor > 1 and _data_ranks(case) > 1
    own = tokens_per_chip(case)
    yield _row("mixed", "tokens per chip and microbatch", limit, own, formula, used=both)


def _expert(case: Case) -> Iterator[Crossover]:
    ffn, topology = case.model.main_ffn, case.system.topology
    if not isinstance(ffn, Moe):
        return
    own = case.layout.expert_degree
    chip, dtype = case.system.chip, case.job.compute
    if isinstance(topology, Torus):
        degree = own if own > 1 else min(ffn.n_experts, max(topology.shape))
        limit = experts.expert_width_on_ring(alpha(chip, "ici", dtype), degree)
        formula = "F > alpha Z / 4, book §3"
    else:
        domain = min(topology.domain, topology.n_gpus)
        degree = own if own > 1 else min(ffn.n_experts, domain)
        outside = degree > domain
        limit = experts.expert_width(
            alpha(chip, "scale_out" if outside else "node", dtype),
            degree,
            experts_per_token=ffn.experts_per_token,
            domain=domain if outside else 0,
        )
        formula = "F > alpha (Z-1)/Z, book §12"
        if outside:
            formula = f"F > alpha (Z-{domain})/k min({domain}k/Z, 1), book §12"
    quantity = "width of an expert"
    yield _row("expert", quantity, limit, ffn.d_ff, formula, used=own > 1, degree=degree)


def _pipe(case: Case) -> Iterator[Crossover]:
    layout = case.layout
    stages, chunks, schedule = 2, 1, "1f1b"
    if layout.mesh.pipe > 1:
        from shardwise.strategy.schedules import find

        stages, schedule = layout.mesh.pipe, layout.schedule
        chunks = find(schedule).chunks or layout.virtual
    limit = thresholds.microbatches_for_bubble(
        BUBBLE, stages=stages, chunks=chunks, schedule=schedule
    )
    if limit is not None:
        formula = f"bubble of {schedule} below {BUBBLE:.0%}, arXiv 2104.04473"
        own, piped = layout.n_microbatches, layout.mesh.pipe > 1
        yield _row("pipe", "microbatches", limit, own, formula, used=piped, degree=stages)


def _context(case: Case) -> Iterator[Crossover]:
    attention = case.model.main_attention
    if not attention:
        return
    degree = max(2, case.layout.mesh.context)
    width = attention.n_kv_heads * (attention.d_head + attention.d_head_v)
    if attention.mla:  # the latent and the shared key are passed on
        width = attention.mla.kv_lora_rank + attention.mla.d_rope
    each = thresholds.ring_tokens(
        alpha(case.system.chip, inner_scope(case), case.job.compute),
        n_heads=attention.n_heads,
        head_width=attention.d_head + attention.d_head_v,
        kv_bytes=width * case.job.activation_bytes,
        causal=attention.causal,
    )
    formula = "T/Z > alpha kv bytes / (N (H + Hv)), arXiv 2310.01889"
    cut, limit = case.layout.mesh.context > 1, degree * each
    yield _row("context", "sequence length", limit, case.job.seq, formula, used=cut, degree=degree)


def _dcn(case: Case) -> Iterator[Crossover]:
    if case.system.n_slices == 1:
        return
    limit = alpha(case.system.chip, "dcn", case.job.compute)
    own = case.job.tokens_per_step / case.system.n_slices
    # The gradients of a step are summed once, whatever its microbatches.
    yield _row("dcn", "tokens per slice", limit, own, "B/X > C / W of DCN, book §5", used=True)
