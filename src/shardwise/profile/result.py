"""The account of a measured step as values: its parts by category and by operation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryTime:
    """A category of a step; `share` is of the step."""

    category: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTime:
    """An operation of a step.

    Args:
        name: the operation of the model, else that of the program.
        phase: forward, backward, remat or update; empty if the name is that of the program.
        count: operations of the program in a step, on one device.
        share: of the step.
        flops: of a step on one device; None if the trace does not say.
        hbm_bytes: read and written by its programs on one device in a step; None if not known.
    """

    name: str
    phase: str
    category: str
    count: float
    seconds: float
    share: float
    flops: float | None = None
    hbm_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The account of a step, the mean over its executions and the devices.

    Args:
        trace: folder or file.
        kind: of the devices: TPU, GPU, CPU.
        module: the program whose execution is a step.
        steps: number of steps that the account is the mean of.
        step_s: sum of the categories, and of the operations with the rows that are not any's.
        longest_step_s: of all steps and devices.
        compute_s: time in which the device does work, communication beside it or not.
        communication_s: time in which a collective runs: `exposed_s` plus `hidden_s`.
        exposed_s: the part of it without other work.
        idle_s: gaps in the program, and the host.
        operations_share: of the step, in operations of programs.
        named_share: of the step, in operations with name scopes of the model.
        has_programs: whether the trace holds the compiled programs.
        plan: the plan kept beside the trace, which ran; empty without one.
    """

    trace: str
    kind: str
    devices: int
    module: str
    steps: int
    step_s: float
    longest_step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    hidden_s: float
    idle_s: float
    operations_share: float
    named_share: float
    has_programs: bool
    categories: tuple[CategoryTime, ...]
    operations: tuple[OperationTime, ...]
    plan: str = ""
