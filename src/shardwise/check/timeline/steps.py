"""What a schedule is made of, when only time matters: four kinds of steps, and loops of them."""

from __future__ import annotations

from dataclasses import dataclass

CORE = "core"  # the engine that runs the schedule: TensorCores, or the SMs of a GPU
COPY = "copy"  # kind of a transfer between memories


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """An operation of the core.

    Args:
        name: of the instruction.
        group: the planned operation it belongs to, and the pass: `("attn.q", "forward")`.
        seconds: on the core.
        drives: fused transfers that move while it runs, and only then.
    """

    name: str
    group: tuple[str, str]
    seconds: float
    drives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes set in motion on other engines than the core.

    Args:
        name: of the instruction; `Await` names it again.
        label: who pays for what is not hidden: mesh axes (`fsdp`), `hbm`, `host`.
        kind: `all_gather`, ..., `copy`, `send_recv`.
        form: `sync`, `async`, `fused`, `offloaded`.
        engines: all that it keeps busy from start to end.
        seconds: on them.
        bytes: for display: V of a collective, or what is copied.
    """

    name: str
    label: str
    kind: str
    form: str
    group: tuple[str, str]
    engines: tuple[str, ...]
    seconds: float
    bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """The core stops until a transfer has ended."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Steps repeated one trip after the other."""

    name: str
    trips: int
    body: tuple[Step, ...]


Step = Compute | Transfer | Await | Loop
