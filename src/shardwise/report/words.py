"""Phrases and formats of numbers that several reports share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from shardwise import units
from shardwise.strategy.mesh import INSIDE_OUT

if TYPE_CHECKING:
    from shardwise.plan.schema.common import PlannedHardware

duration = units.show_seconds


def mesh_text(mesh: Mapping[str, int]) -> str:
    """The mesh axes larger than 1, those of neighbouring chips first: `tensor 4 × fsdp 32`."""
    axes = [f"{role} {mesh[role]:,}" for role in INSIDE_OUT if mesh.get(role, 1) > 1]
    return " × ".join(axes) or "one chip"


def dtypes_text(precision: Mapping[str, str]) -> str:
    """The dtype of the weights, and that of the KV cache if it differs: `int8, KV bf16`."""
    weights = precision["weights"]
    if precision["kv"] == weights:
        return weights
    return f"{weights}, KV {precision['kv']}"


def listed(words: Sequence[str]) -> str:
    """Join words as prose does: `data`, `data and fsdp`, `data, fsdp and pipe`."""
    *leading, last = words or [""]
    if not leading:
        return last
    return f"{', '.join(leading)} and {last}"


def span(low: str, high: str) -> str:
    """A range between two quantities with units; a common unit is written once.

    >>> span("486 ms", "854 ms"), span("487 ms", "1.32 s")
    ('486–854 ms', '487 ms–1.32 s')
    """
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    if high.endswith(f" {unit}"):
        low = number
    return f"{low}–{high}"


def seconds_span(low: float, high: float) -> str:
    """A range between two durations in seconds: `486–854 ms`."""
    return span(duration(low), duration(high))


def percent(share: float) -> str:
    """A share as percent with two significant digits: `88 %`, `0.4 %`."""
    return f"{units.significant(100 * share, 2)} %"


def signed_percent(share: float) -> str:
    """A relative change as percent with its sign: `+3.1 %`, `-0.4 %`."""
    return f"{share:+.1%}".replace("%", " %")


def counted(n: int, noun: str) -> str:
    """A number and its noun, in the plural unless it is 1: `8 hosts`, `4 batches`, `3 ICI axes`."""
    if n == 1:
        return f"1 {noun}"
    if noun.endswith("axis"):
        return f"{n:,} {noun[:-2]}es"
    if noun.endswith("ch"):
        return f"{n:,} {noun}es"
    return f"{n:,} {noun}s"


def chips(n: int) -> str:
    """A number of chips: `1 chip`, `8,960 chips`."""
    return counted(n, "chip")


def bound_name(bound: str) -> str:
    """The bound of a step at the start of a sentence: `HBM`, `Compute`, `Communication`."""
    if bound == "hbm":
        return "HBM"
    return bound.capitalize()


def compiled_steps(n_compiled: int, n_steps: int) -> str:
    """In how many steps the host compiles: `a program is compiled in 5 of 5 steps (...)`."""
    steps = counted(n_steps, "step")
    return f"a program is compiled in {n_compiled:,} of {steps} (new shapes or a new function?)"


def measured_as(hardware: PlannedHardware) -> Iterator[tuple[str, str]]:
    """A label and a text: the rates are those of more devices, which shared a CPU."""
    if hardware.measured_devices is not None:
        yield (
            "rates",
            f"of {hardware.measured_devices} devices that share a CPU; fewer have more of it: "
            f"shardwise hw measure {hardware.n_chips}",
        )
