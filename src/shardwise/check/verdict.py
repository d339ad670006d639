"""What `check` answers, as values: field names are the keys of the JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.plan.schema.common import Range, XlaFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNumbers:
    """Of one chip: bytes at the peak of the step, FLOPs of a step, seconds of it."""

    peak_bytes: float
    flops: float
    step_s: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSeconds:
    """A step by the compiler's estimated cycles (None where it has none), and by rooflines."""

    cycles: float | None
    roofline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledNumbers:
    """Of one device, as the compiler has them. Memory and seconds are None where nothing is proved
    about them: on a compiler that is not the chip's own.

    Args:
        host_bytes: in the memory of the host, whose peak they are not part of.
        by_category: bytes that are held at the peak, as read off the schedule: weights, optimizer,
            activations, logits and so on. What an allocator loses between them is left out.
        exposed_s: seconds of a step that are spent waiting, by what is waited for.
    """

    peak_bytes: int | None
    arguments_bytes: int
    temporaries_bytes: int | None
    host_bytes: int | None
    capacity_bytes: float | None
    flops: float
    step_s: CompiledSeconds | None
    exposed_s: Mapping[str, float]
    by_category: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCollective:
    """All collectives of one kind for one role, in one step on one chip.

    Args:
        role: of the mesh axes that they run over; `other` of what no plan lists (sums of the loss
            and of the statistics of its softmax).
        planned_bytes, compiled_bytes: what the chip takes in.
        asynchronous: share of the bytes that the compiler moves beside other work.
    """

    role: str
    kind: str
    planned_n: int
    planned_bytes: float
    compiled_n: int
    compiled_bytes: float
    asynchronous: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where program and plan part, in words; bytes that it is about, and seconds where known."""

    text: str
    bytes: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Arrays of one shape at the peak, in the words of the model.

    Args:
        n: how many of them there are.
        bytes: of one.
        name: what they are: `unembed logits`, `gate, up, hidden of 32 layers`.
        letters: their dims, `[B,T,V]`; empty where the model has no array of that shape.
        category: `activations`, `logits`, `gathered weights`, ...
        scope: the operation that makes them.
    """

    n: int
    bytes: int
    shape: str
    name: str
    letters: str
    category: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan in the place of one that failed, and what the compiler says of it.

    Args:
        change: what is different, in words.
        command: the line that plans it.
        verdict: of its check.
    """

    change: str
    command: str
    planned_bytes: float
    compiled_bytes: int | None
    step_s: Range
    verdict: str

    @property
    def passed(self) -> bool:
        """Whether its check did."""
        return self.verdict == "proved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the compiler says of a plan.

    Args:
        name, hardware: of model and machine.
        compiler: `tpu`, `gpu` or `cpu`, whose compiler it was.
        fits: None where that compiler cannot say.
        verdict: `proved`, `does not fit`, or `collectives missing`.
        note: why, and what is not proved.
        largest: arrays at the peak, the largest first.
        xla_flags: the options that it was compiled with, from the plan.
        compile_s: seconds of lowering and compiling.
        proposals: what would pass in its place, where that was asked for.
    """

    name: str
    hardware: str
    compiler: str
    fits: bool | None
    verdict: str
    note: str
    planned: PlannedNumbers
    compiled: CompiledNumbers | None
    collectives: tuple[CheckedCollective, ...]
    differences: tuple[Difference, ...]
    largest: tuple[Buffer, ...]
    xla_flags: tuple[XlaFlag, ...]
    compile_s: float
    versions: Mapping[str, str]
    proposals: tuple[Proposal, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing that was checked failed."""
        return self.verdict == "proved"
