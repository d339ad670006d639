"""The account of a measured step as values: its parts by category and by operation."""

from __future__ import annotations

from dataclasses import dataclass, field


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
        roof_s: least seconds at the peak rates of the chip; None without a chip.
        roof: the rate that makes them: compute or HBM; empty without a chip.
        upcast_flops: those of products in fp32 of arrays that the program has cast from 16 bits.
        odd_dim: the largest dim of its products that does not fill the vectors of the device; 0
            without one.
        collectives: kind of a collective -> bytes of the arrays that a step's join on one device;
            empty if there are none, or if the trace does not hold the program.
    """

    name: str
    phase: str
    category: str
    count: float
    seconds: float
    share: float
    flops: float | None = None
    hbm_bytes: float | None = None
    roof_s: float | None = None
    roof: str = ""
    upcast_flops: float = 0.0
    odd_dim: int = 0
    collectives: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArrays:
    """Temporary arrays of one operation that are live at the peak of memory."""

    name: str
    phase: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The memory of a program on one device, as its compiler assigned it.

    Args:
        bytes: `arguments` plus `results` plus `temporaries`.
        arguments: what the program is given, and results in their place.
        results: results that have memory of their own.
        temporaries: all else; the arrays of the peak fit in it.
        instruction, operation: what runs when most temporary arrays are live.
        at_share: when, as a share of the step; None if the trace does not say.
        arrays: those that are live then, by operation, the largest first.
    """

    bytes: int
    arguments: int
    temporaries: int
    instruction: str
    operation: str
    arrays: tuple[LiveArrays, ...]
    at_share: float | None = None
    results: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStep:
    """A step that took much longer than the others; `compiled`: the host compiled in it."""

    seconds: float
    compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The account of a step, the mean over its executions and the devices.

    Args:
        trace: folder or file.
        kind: of the devices: TPU, GPU, CPU.
        module: the program whose execution is a step; empty if no program is the step.
        steps: number of steps that the account is the mean of.
        step_s: sum of the categories, and of the operations with the rows that are not any's.
        longest_step_s: of these steps and all devices.
        slow_steps: those that the account leaves out, as something disturbed them.
        compute_s: time in which the device does work, communication beside it or not.
        communication_s: time in which a collective transfers: `exposed_s` plus `hidden_s`.
        exposed_s: the part of it without other work.
        waiting_s: time in which devices do nothing but wait in collectives for other devices.
        n_programs: number of programs that ran in the trace.
        most_frequent: the program that ran most often.
        has_marked_steps: whether steps are those that the trace marks, as no program is the step.
        compiled_steps: number of steps in which the host compiled a program.
        idle_s: gaps in the program, and the host.
        operations_share: of the step, in operations of programs.
        named_share: of the step, in operations with name scopes of the model.
        has_programs: whether the trace holds the compiled programs.
        plan: the plan kept beside the trace, which ran; empty without one.
        chip: whose roofs bound the operations; empty without one.
        memory: None if the trace does not hold the compiler's assignment.
        dtype: of the operands of products as compiled (`bf16`); empty if the trace does not hold
            the program.
        undonated_bytes: of the arguments that the program returns updated in other memory; None if
            the trace does not hold the program.
        updated_elements: of the arguments that the program returns updated; None as above.
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
    chip: str = ""
    memory: MemoryPeak | None = None
    dtype: str = ""
    waiting_s: float = 0.0
    compiled_steps: int = 0
    slow_steps: tuple[SlowStep, ...] = ()
    n_programs: int = 1
    most_frequent: str = ""
    has_marked_steps: bool = False
    undonated_bytes: int | None = None
    updated_elements: int | None = None

    @property
    def has_steps(self) -> bool:
        """Whether it is an account of steps, and not of a whole trace."""
        return bool(self.module) or self.has_marked_steps
