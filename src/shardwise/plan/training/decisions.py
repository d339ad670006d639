"""The decision path: what a planner asks one after the other, with the numbers of one plan.

The order is that of the book (§5, §6, §12) and of the Ultra-Scale Playbook ("finding the best
training configuration"): fit, then the batch, then throughput. Each question leads to one split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise import units
from shardwise.estimate.training import optimizer
from shardwise.hardware import Torus
from shardwise.models import count
from shardwise.plan.decisions import (
    Capacity,
    Decision,
    ExpertWidth,
    Memory,
    Ring,
    Sequences,
    Stages,
    TensorDegree,
)
from shardwise.plan.training.crossovers import Crossover, tokens_per_chip
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import Candidate


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
    return Capacity(
        step="chip",
        number=state,
        limit=hbm,
        unit="B",
        met=state <= hbm,
        degree=None,
        n_chips=1,
        of_several=case.system.n_chips > 1,
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
    yield Capacity(
        step=name,
        number=state,
        limit=limit,
        unit="B",
        met=state <= limit,
        degree=None,
        n_chips=n,
        of_several=True,
    )


def _sequences(case: Case) -> Decision:
    """Without a whole sequence for each chip the model or the sequence is split."""
    chips, batch = case.system.n_chips, case.job.batch
    mesh = case.layout.mesh
    return Sequences(
        step="sequences",
        number=float(batch),
        limit=float(chips),
        unit="sequences",
        met=chips <= batch,
        degree=case.layout.data_shards,
        chips_per_sequence=mesh.tensor * mesh.context * mesh.pipe,
    )


def _data(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    mesh = case.layout.mesh
    yield Decision(**_compared(rows["data"], mesh.data * mesh.fsdp))


def _tensor(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    topology, mixed = case.system.topology, rows.get("mixed")
    if rows["data"].met:
        mixed = None
    yield TensorDegree(
        **_compared(rows["tensor"], case.layout.mesh.tensor),
        node=None if isinstance(topology, Torus) else min(topology.domain, topology.n_gpus),
        mixed_tokens=mixed.own if mixed else None,
        mixed_threshold=mixed.threshold if mixed else None,
    )


def _pipe(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    """Stages share the model over nodes, which divides the threshold of data by their number."""
    row, took = rows.get("pipe"), case.layout.mesh.pipe
    if row is None or (took == 1 and rows["data"].met):
        return
    yield Stages(**_compared(row, took), data_lacks=rows["data"].threshold / tokens_per_chip(case))


def _context(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    row = rows["context"]
    yield Ring(**_compared(row, case.layout.mesh.context), ring=row.degree or 1)


def _expert(case: Case, rows: dict[str, Crossover]) -> Iterator[Decision]:
    row = rows.get("expert")
    if row is not None:
        yield ExpertWidth(**_compared(row, case.layout.expert_degree), chips=row.degree)


def _memory(case: Case, chosen: Candidate) -> Decision:
    memory, layout = chosen.memory, case.layout
    room = float(memory.capacity - memory.margin)
    total = float(memory.total)
    return Memory(
        step="memory",
        number=total,
        limit=room,
        unit="B",
        met=total <= room,
        degree=None,
        remat=layout.policy,
        n_microbatches=layout.n_microbatches,
        micro_batch=layout.micro_batch,
    )


def _compared(row: Crossover, degree: int) -> dict[str, Any]:
    """The fields of every decision that a threshold leads to."""
    return {
        "step": row.split,
        "number": row.own,
        "limit": row.threshold,
        "unit": row.quantity,
        "met": row.met,
        "degree": degree,
    }
