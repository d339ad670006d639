"""Overlap of communication with compute that a run switches on, in the terms of Megatron Core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.frameworks.exported import TrainingRun
from shardwise.frameworks.megatron_recompute import FFN

TENSOR = "tp_comm_overlap"
EXPERTS = "overlap_moe_expert_parallel_comm"


def write(run: TrainingRun) -> tuple[dict[str, Any], list[str]]:
    """The fields of the overlaps of a plan, and notes.

    Megatron Core computes half of a layer while tokens of the other half travel to their experts
    where no experts are recomputed and where stages of a pipeline have several chunks
    (`TransformerConfig.__post_init__`).
    """
    layout = run.layout
    values: dict[str, Any] = {}
    if "tp_comm" in layout.overlap and layout.mesh.tensor > 1:
        values[TENSOR] = True
    if "expert_all_to_all" not in layout.overlap or not run.is_moe or layout.expert_degree == 1:
        return values, []
    lacks = []
    if all(map(layout.recomputes, FFN)):
        lacks.append(f"remat {layout.policy}")
    if layout.mesh.pipe > 1 and layout.virtual == 1:
        lacks.append("stages of one chunk")
    if lacks:
        return values, [
            "the plan overlaps the AllToAll of experts with compute, which Megatron Core refuses "
            f"with {' and '.join(lacks)}: the file leaves it out, and the run is slower."
        ]
    return {**values, EXPERTS: True}, []


def read(values: Mapping[str, Any], *, tensor: int, degree: int) -> tuple[str, ...]:
    """The overlaps of a file, of `OPTIONAL_OVERLAPS`.

    Args:
        tensor, degree: ranks of tensor and of expert parallelism, without which there is none.
    """
    words = []
    if values.get(TENSOR) is True and tensor > 1:
        words.append("tp_comm")
    if values.get(EXPERTS) is True and degree > 1:
        words.append("expert_all_to_all")
    return tuple(words)
