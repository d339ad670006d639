"""Layouts that published runs have used: a search is not to win by what nobody has measured.

Predictions are compared with published runs. A layout that combines parallelisms as none of them
does is predicted by formulas alone. It is within practice if a published run of the same kind (GPUs
or TPUs, dense or with experts) on `SCALE` times as many chips, or as few, shards the same roles of
the mesh. Each size, and the schedule, must be that of such a run, and sequences over `context`
no shorter than theirs.

`practice.toml` has the runs; `bench/calibrate.py` writes it.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from shardwise.arrays import Num
from shardwise.estimate.calibration import KINDS, MEASURED, PEAK, Calibration
from shardwise.hardware import System, chip_names
from shardwise.models import ModelConfig
from shardwise.strategy.layout import Layout
from shardwise.workload import Train

SCALE = 4  # a run says something of machines with a quarter to four times as many chips
# Relative difference of two predicted steps below which the layout within practice is taken. To
# choose among measured layouts of one job by their prediction costs as much (`validate`, layouts).
SAME_STEP = 0.02
ROLES = ("fsdp", "tensor", "context", "expert", "pipe")
SIZED_ROLES = ROLES[1:]  # weights are sharded over as many chips as there are


def limit_s(fastest_s: float) -> float:
    """Step seconds up to which the best layout within practice is taken over the fastest one."""
    return (1 + SAME_STEP) * fastest_s


class PublishedLayout(NamedTuple):
    """Layout of published runs that agree in all but the number of chips and the sequence length.

    Args:
        kind: kind of chip.
        moe: whether the model has experts.
        fsdp: whether weights are sharded (ZeRO-3).
        min_chips, max_chips: fewest and most chips.
        seq: shortest sequence.
    """

    kind: str
    moe: bool
    fsdp: bool
    tensor: int
    context: int
    expert: int
    pipe: int
    schedule: str
    min_chips: int
    max_chips: int
    seq: int

    @property
    def sharded(self) -> tuple[bool, ...]:
        """Whether each of `ROLES` is sharded."""
        return (self.fsdp, *(getattr(self, role) > 1 for role in SIZED_ROLES))


@functools.cache
def _content() -> dict[str, Any]:
    """Content of `practice.toml`."""
    return tomllib.loads((files(__package__) / "practice.toml").read_text(encoding="utf-8"))


@functools.cache
def published_layouts() -> tuple[PublishedLayout, ...]:
    """Layouts of published runs."""
    return tuple(PublishedLayout(*row) for row in _content()["layouts"])


def best_published_mfu(chip: str, dtype: str) -> float | None:
    """The highest MFU of published runs on a chip with matmuls in a dtype; None without any."""
    best: float | None = _content()["mfu"].get(chip, {}).get(dtype)
    return best


def is_known(system: System, cal: Calibration) -> bool:
    """Whether there is practice with the chip, and times are those to be expected of it."""
    chip = system.chip
    is_expected = cal.name not in (PEAK.name, MEASURED.name)
    return is_expected and chip.kind in KINDS and chip.name in chip_names()


def comparable(config: ModelConfig, system: System) -> list[PublishedLayout]:
    """Published layouts of the same kind of chip and model, on machines of a similar size."""
    n = system.n_chips
    return [
        run
        for run in published_layouts()
        if run.kind == system.chip.kind
        and run.moe == config.is_moe
        and run.min_chips <= SCALE * n
        and n <= SCALE * run.max_chips
    ]


def is_in_practice(
    config: ModelConfig, system: System, job: Train, sizes: Mapping[str, Num]
) -> Num:
    """Whether meshes, one or arrays of them, are within practice.

    Args:
        sizes: mesh role -> number of chips.
    """
    runs_by_roles: dict[tuple[bool, ...], list[PublishedLayout]] = {}
    for run in comparable(config, system):
        if run.context == 1 or run.seq <= job.seq:
            runs_by_roles.setdefault(run.sharded, []).append(run)
    result: Num = sizes["pipe"] < 1
    for sharded, runs in runs_by_roles.items():
        same: Num = sizes["pipe"] > 0
        for role, is_sharded in zip(ROLES, sharded, strict=True):
            same = same & ((sizes[role] > 1) == is_sharded)
            if role in SIZED_ROLES and is_sharded:
                same = same & _among(sizes[role], {getattr(run, role) for run in runs})
        result = result | same
    return result


def may_be_in_practice(
    config: ModelConfig, system: System, job: Train, sizes: Mapping[str, int]
) -> bool:
    """Whether any mesh with these sizes may be within practice: of part of the roles, each may."""
    is_whole_mesh = sizes.keys() >= {*ROLES}
    return not is_whole_mesh or bool(is_in_practice(config, system, job, sizes))


def schedules_in_practice(config: ModelConfig, system: System) -> frozenset[str]:
    """Pipeline schedules of comparable published runs."""
    return frozenset(run.schedule for run in comparable(config, system))


def layout_in_practice(config: ModelConfig, system: System, job: Train, layout: Layout) -> bool:
    """Whether a layout is within practice: its mesh and its schedule."""
    if layout.is_pipelined and layout.schedule not in schedules_in_practice(config, system):
        return False
    return bool(is_in_practice(config, system, job, layout.sizes))


def _among(sizes: Num, values: set[int]) -> Num:
    """Whether each size is one of the values."""
    result: Num = sizes < 0
    for value in values:
        result = result | (sizes == value)
    return result
