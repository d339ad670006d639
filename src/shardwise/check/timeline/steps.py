"""Steps of a schedule when only time matters: four kinds, one of them a loop of steps."""

from __future__ import annotations

from dataclasses import dataclass

CORE = "core"  # the engine that runs the schedule: TensorCores, or the SMs of a GPU
COPY = "copy"  # kind of a transfer between memories
Operation = tuple[str, str]  # planned operation and pass: ("attn.q", "forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """An operation of the core.

    Args:
        name: of the instruction.
        seconds: on the core.
        advances: names of fused transfers that progress while it runs, and only then.
    """

    name: str
    operation: Operation
    seconds: float
    advances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The start of a transfer on engines other than the core.

    Args:
        name: of the instruction, to which an `Await` refers.
        label: what exposed seconds are attributed to: mesh axes (`fsdp`), `hbm`, `host`.
        kind: `all_gather`, ..., `copy`, `send_recv`.
        form: `sync`, `async`, `fused`, `offloaded`.
        engines: all that it occupies from start to end.
        seconds: on them.
        bytes: for display: V of a collective, or the size of a copy.
    """

    name: str
    label: str
    kind: str
    form: str
    operation: Operation
    engines: tuple[str, ...]
    seconds: float
    bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """A point at which the core blocks until the named transfer has ended."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Steps that are repeated trip by trip."""

    name: str
    trips: int
    body: tuple[Step, ...]


Step = Compute | Transfer | Await | Loop
