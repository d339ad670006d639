"""The decisions that lead to a training plan, in order, with the numbers that they compare.

The order is that of the book (§5, §6, §12) and of the Ultra-Scale Playbook ("finding the best
training configuration"): first memory, then the batch, then throughput.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.training.optimizer import bytes_per_parameter
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
    comparison,
)
from shardwise.plan.training.crossovers import Crossover, tokens_per_chip
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import Candidate


def decision_path(
    case: Case, chosen: Candidate, table: tuple[Crossover, ...]
) -> tuple[Decision, ...]:
    """All decisions that apply to the model and the machine, in order."""
    thresholds = {row.split: row for row in table}
    if case.system.n_chips == 1:
        return (_chip(case), _memory(case, chosen))
    return (
        _chip(case),
        *_node(case),
        _sequences(case),
        _data(case, thresholds),
        _tensor(case, thresholds),
        *_pipe(case, thresholds),
        _context(case, thresholds),
        *_expert(case, thresholds),
        _memory(case, chosen),
    )


def _state_bytes(case: Case) -> float:
    """Bytes of the training state of the whole model: weights, gradients, optimizer state."""
    n_bytes = sum(bytes_per_parameter(case.model, case.job).values())
    return count.parameters(case.model).total * n_bytes


def _capacity(case: Case, step: str, n_chips: int, *, of_several: bool) -> Decision:
    limit = n_chips * capacity_bytes(case.system.chip)
    compared = comparison(step, _state_bytes(case), limit, "B")
    return Capacity(**compared, n_chips=n_chips, of_several=of_several)


def _chip(case: Case) -> Decision:
    return _capacity(case, "chip", 1, of_several=case.system.n_chips > 1)


def _node(case: Case) -> Iterator[Decision]:
    """Capacity of one of several NVLink domains or slices; nothing if there is only one."""
    topology = case.system.topology
    if isinstance(topology, Torus):
        if case.system.n_slices > 1:
            yield _capacity(case, "slice", topology.n_chips, of_several=True)
    elif topology.n_nodes > 1:
        n_gpus = topology.gpus_per_node
        yield _capacity(case, "node", n_gpus, of_several=True)


def _sequences(case: Case) -> Decision:
    """With fewer sequences than chips, the model or each sequence must be split."""
    n_chips = case.system.n_chips
    batch = case.job.batch
    mesh = case.layout.mesh
    degree = case.layout.data_shards
    return Sequences(
        **comparison("sequences", float(batch), float(n_chips), "sequences", degree, at_least=True),
        chips_per_sequence=mesh.tensor * mesh.context * mesh.pipe,
    )


def _data(case: Case, thresholds: dict[str, Crossover]) -> Decision:
    mesh = case.layout.mesh
    return Decision(**_threshold_fields(thresholds["data"], mesh.data * mesh.fsdp))


def _tensor(case: Case, thresholds: dict[str, Crossover]) -> Decision:
    topology = case.system.topology
    node = None
    if not isinstance(topology, Torus):
        node = topology.gpus_per_node
    mixed = thresholds.get("mixed")
    if thresholds["data"].met:
        mixed = None
    return TensorDegree(
        **_threshold_fields(thresholds["tensor"], case.layout.mesh.tensor),
        node=node,
        mixed_tokens=mixed.own if mixed else None,
        mixed_threshold=mixed.threshold if mixed else None,
    )


def _pipe(case: Case, thresholds: dict[str, Crossover]) -> Iterator[Decision]:
    """Pipeline stages, of interest if used or if data sharding does not hide its traffic.

    `n` stages divide the tokens per chip that data sharding needs by `n`.
    """
    row = thresholds.get("pipe")
    stages = case.layout.mesh.pipe
    data = thresholds["data"]
    if row is not None and (stages > 1 or not data.met):
        data_lacks = data.threshold * stages / tokens_per_chip(case.job, case.layout)
        yield Stages(**_threshold_fields(row, stages), data_lacks=data_lacks)


def _context(case: Case, thresholds: dict[str, Crossover]) -> Decision:
    row = thresholds["context"]
    return Ring(**_threshold_fields(row, case.layout.mesh.context), ring=row.degree or 1)


def _expert(case: Case, thresholds: dict[str, Crossover]) -> Iterator[Decision]:
    row = thresholds.get("expert")
    if row is not None:
        yield ExpertWidth(**_threshold_fields(row, case.layout.expert_degree), chips=row.degree)


def _memory(case: Case, chosen: Candidate) -> Decision:
    memory = chosen.memory
    layout = case.layout
    available = float(memory.capacity - memory.margin)
    return Memory(
        **comparison("memory", float(memory.total), available, "B"),
        remat=layout.policy,
        n_microbatches=layout.n_microbatches,
        micro_batch=layout.micro_batch,
    )


def _threshold_fields(row: Crossover, degree: int) -> dict[str, Any]:
    """The fields of a decision that takes its numbers from a row of the crossover table."""
    fields = comparison(row.split, row.own, row.threshold, row.quantity, degree)
    return {**fields, "met": row.met}
