"""The decision path: what a planner asks one after the other, with the numbers of one plan.

The order is that of the book (§5, §6, §12) and of the Ultra-Scale Playbook ("finding the best
training configuration"): fit, then the batch, then throughput. Each question leads to one split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardwise import units
from shardwise.estimate.training import optimizer
from shardwise.formulas.memory import chips_to_hold
from shardwise.hardware import Torus
from shardwise.models import count
from shardwise.plan.training.crossovers import Crossover, tokens_per_chip
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One step of the path.

    Args:
        step: what is decided: chip, node, sequences, data, tensor, pipe, context, expert, memory.
        number, limit: what was compared, both in `unit`.
        met: the number is within the limit.
        degree: what the plan took of the split that the question leads to, None where to none.
        text: question, numbers and what follows.
    """

    step: str
    number: float
    limit: float
    unit: str
    met: bool
    degree: int | None
    text: str


def path(case: Case, chosen: Candidate, table: tuple[Crossover, ...]) -> tuple[Decision, ...]:
    """Every step that the model and the machine lead to, in order."""
    rows = {row.split: row for row in table}
    one = _chip(case)
    if case.system.n_chips == 1:
        return (one, _memory(case, chosen))
    return (
        one,
        *_node(case),
        _sequences(case),
        *_data(case, rows),
        *_tensor(case, rows),
        *_pipe(case, rows),
        *_context(case, rows),
        *_expert(case, rows),
        _memory(case, chosen),
    )


def _state(case: Case) -> float:
    """Bytes of weights, gradients and optimizer state of the whole model."""
    job = case.job
    each = job.weight_bytes + units.bytes_per_element(job.gradients)
    each += optimizer.state_bytes(case.model, job)
    return count.parameters(case.model).total * each


def _holds(case: Case) -> float:
    return case.system.chip.need("hbm_bytes")


def _chip(case: Case) -> Decision:
    state, hbm = _state(case), _holds(case)
    fits = state <= hbm
    text = f"{units.show_gib(state)} of weights, gradients and optimizer state; one chip holds "
    text += units.show_gib(hbm)
    if not fits:
        text += f": at least {chips_to_hold(state, hbm):,} chips share it"
    elif case.system.n_chips > 1:
        text += ": it fits, more chips are for speed"
    return Decision(
        step="chip", number=state, limit=hbm, unit="B", met=fits, degree=None, text=f"{text}."
    )


def _node(case: Case) -> Iterator[Decision]:
    """One NVLink domain, or one slice of several."""
    topology = case.system.topology
    if isinstance(topology, Torus):
        n, name = topology.n_chips, "slice"
        if case.system.n_slices == 1:
            return
    else:
        n, name = min(topology.domain, topology.n_gpus), "node"
        if topology.n_nodes == 1:
            return
    state, limit = _state(case), n * _holds(case)
    fits = state <= limit
    follows = "one could hold it" if fits else "the model lies across several"
    yield Decision(
        step=name,
        number=state,
        limit=limit,
        unit="B",
        met=fits,
        degree=None,
        text=f"A {name} of {n:,} chips holds {units.show_gib(limit)}: {follows}.",
    )


def _sequences(case: Case) -> Decision:
    """Without a whole sequence for each chip the model or the sequence is split."""
    chips, batch = case.system.n_chips, case.job.batch
    per = chips / batch
    text = f"{batch:,} sequences for {chips:,} chips: "
    if per > 1:
        mesh = case.layout.mesh
        shared = mesh.tensor * mesh.context * mesh.pipe
        text += f"tensor, context or pipe must share one among {math.ceil(per):,}; here {shared:,}."
    else:
        text += f"{1 / per:,.0f} for each, data sharding alone is possible."
    return Decision(
        step="sequences",
        number=float(batch),
        limit=float(chips),
        unit="sequences",
        met=per <= 1,
        degree=case.layout.data_shards,
        text=text,
    )


def _data(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    row = rows["data"]
    if row.met:
        follows = "gathers of FSDP hide, tensor is not needed for them"
    else:
        follows = f"pure FSDP waits ×{row.threshold / row.own:.1f}: fewer gathers or a second axis"
    yield _taken(
        row,
        case.layout.mesh.data * case.layout.mesh.fsdp,
        f"{row.own:,.0f} tokens per chip and microbatch against {row.threshold:,.0f}: {follows}.",
    )


def _tensor(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    row, took = rows["tensor"], case.layout.mesh.tensor
    topology = case.system.topology
    limit = row.threshold
    text = f"Tensor hides up to {limit:.1f} ways"
    if not isinstance(topology, Torus):
        text += f" and stays within a node of {min(topology.domain, topology.n_gpus)}"
    mixed = rows.get("mixed")
    if mixed is not None and not rows["data"].met:
        side = "above" if mixed.met else "below"
        text += f"; {mixed.own:,.0f} tokens a chip, {side} the {mixed.threshold:,.0f} of a mix"
    yield _taken(row, took, f"{text}: {_took('tensor', took)}.")


def _pipe(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    """Stages share the model over nodes, which divides the threshold of data by their number."""
    row, took = rows.get("pipe"), case.layout.mesh.pipe
    if row is None or (took == 1 and rows["data"].met):
        return
    lacking = rows["data"].threshold / tokens_per_chip(case)
    text = f"Data sharding lacks ×{lacking:.1f} of its tokens" if lacking > 1 else "Stages"
    text += f": {_took('pipe', took)}"
    if took > 1:
        side = "enough" if row.met else "too few"
        text += (
            f", {row.own:,.0f} microbatches, {side} for a bubble below 10 % ({row.threshold:,.0f})"
        )
    yield _taken(row, took, f"{text}.")


def _context(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    row, took = rows["context"], case.layout.mesh.context
    side = "from" if row.met else "short of"
    text = (
        f"Sequences of {case.job.seq:,}, {side} the {row.threshold:,.0f} where attention hides a "
        f"ring of {row.degree}: {_took('context', took)}."
    )
    yield _taken(row, took, text)


def _expert(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    row = rows.get("expert")
    if row is None:
        return
    took = case.layout.expert_degree
    side = "wide enough" if row.met else "too narrow"
    text = (
        f"Experts {row.own:,.0f} wide, {side} to hide their tokens' way over {row.degree} chips "
        f"({row.threshold:,.0f}): {_took('expert', took)}."
    )
    yield _taken(row, took, text)


def _memory(case: Case, chosen: Candidate) -> Decision:
    memory, layout = chosen.memory, case.layout
    room = float(memory.capacity - memory.margin)
    total = float(memory.total)
    text = (
        f"{units.show_gib(total)} of {units.show_gib(room)}: remat {layout.policy}, "
        f"{layout.n_microbatches:,} microbatch{'es' if layout.n_microbatches > 1 else ''} of "
        f"{layout.micro_batch:,}."
    )
    return Decision(
        step="memory", number=total, limit=room, unit="B", met=total <= room, degree=None, text=text
    )


def _taken(row: Crossover, degree: int, text: str) -> Decision:
    return Decision(
        step=row.split,
        number=row.own,
        limit=row.threshold,
        unit=row.quantity,
        met=row.met,
        degree=degree,
        text=text,
    )


def _took(role: str, n: int) -> str:
    return f"{role} {n:,}" if n > 1 else f"no {role}"
