"""Steps of a schedule, as far as its time depends on them: compute, transfer, await and loop."""

from __future__ import annotations

from dataclasses import dataclass

CORE = "core"  # the engine that runs the schedule: TensorCores, or the SMs of a GPU
COPY = "copy"  # kind of a transfer between memories
# Directions of the links of a torus axis, as suffixes of its engine: `x forward`.
DIRECTIONS = ("forward", "backward")
Operation = tuple[str, str]  # (planned operation, pass), such as ("attn.q", "forward")


def shared_engines(engine: str) -> tuple[str, ...]:
    """Engines that share links with `engine`: both directions of an axis, or the axis of one.

    >>> shared_engines("x"), shared_engines("x forward")
    (('x', 'x forward', 'x backward'), ('x forward', 'x'))
    """
    axis, _, direction = engine.partition(" ")
    if direction in DIRECTIONS:
        return engine, axis
    return engine, *(f"{engine} {direction}" for direction in DIRECTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """An operation of the core.

    Args:
        seconds: time on the core.
        advances: names of fused transfers that progress while it runs.
        flops: FLOPs of its products; for display only.
        hbm_bytes: bytes that it reads and writes in HBM; for display only.
    """

    name: str
    operation: Operation
    seconds: float
    advances: tuple[str, ...] = ()
    flops: float = 0.0
    hbm_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The start of a transfer on engines other than the core.

    Args:
        name: name of the instruction; an `Await` refers to it.
        label: group of transfers whose exposed seconds are added up: mesh axes (`fsdp`), `hbm`,
            `host`.
        kind: kind of a collective (`all_gather`, `send_recv`, ...), `copy`, or `work` of another
            core.
        form: `sync`, `async`, `fused` or `offloaded`.
        engines: the engines that it occupies, all of them for its whole duration.
        seconds: time on the engines.
        bytes: V of a collective, or the size of a copy; for display only.
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
