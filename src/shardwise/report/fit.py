"""The memory of a model, the smallest machine that fits it, and the memory left on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardwise import units
from shardwise.hardware import show_value
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import chips


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory left on a machine for one figure of its chips' capacity.

    Args:
        capacity: `documented`, or `usable` as the compiler or driver reports it.
        hbm_bytes: capacity of the whole machine.
        left_bytes: capacity less the bytes of the model; negative where it does not fit.
        sequences: sequences of the given context whose KV cache fits (serving).
        tokens_per_chip: tokens whose layer inputs fit in what is left (training).
    """

    capacity: str
    hbm_bytes_per_chip: float
    hbm_bytes: float
    fits: bool
    left_bytes: float
    sequences: int | None
    tokens_per_chip: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The memory of a model in one dtype, and a machine for it.

    Args:
        held: bytes by part.
        system: the given machine, or the smallest that fits.
        rooms: the memory left, for each known capacity of the chip.
    """

    dtype: str
    kv_dtype: str | None
    held: dict[str, float]
    bytes_per_parameter: dict[str, float]
    kv_bytes_per_token: float | None
    kv_bytes_per_sequence: float | None
    system: str
    n_chips: int
    rooms: tuple[Room, ...]

    @property
    def fits(self) -> bool:
        """Whether the documented capacity suffices."""
        return self.rooms[0].fits

    @property
    def held_bytes(self) -> float:
        """Bytes of all parts."""
        return sum(self.held.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The answer of `fit`.

    Args:
        kind: `serve` or `train`.
        hardware: name of the machine or chip, as given.
        n_parameters: stored parameters.
        context: tokens of a sequence (serving).
        batch: sequences whose KV cache is counted (serving).
    """

    model: str
    hardware: str
    kind: str
    n_parameters: int
    context: int | None
    batch: int | None
    optimizer: str | None
    needs: tuple[Need, ...]


def document(result: FitResult) -> dict[str, Any]:
    """The result as a JSON document, with the sums that its lines show."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(result)
    for need, row in zip(result.needs, fields["needs"], strict=True):
        row["held_bytes"] = need.held_bytes
    return fields


def blocks(result: FitResult) -> Iterator[Block]:
    """The answer: a row per dtype for serving, a row per part for training."""
    need = result.needs[0]
    yield strong(_headline(result))
    if result.kind == "serve":
        yield from _serving(result)
    else:
        yield from _training(result, need)
    if len(need.rooms) > 1:
        documented, usable = (room.hbm_bytes_per_chip for room in need.rooms)
        yield quiet(
            f"memory per chip: {show_value(documented, 'B')} documented; "
            f"{show_value(usable, 'B')} ({units.show_bytes(usable)}) usable by a program, as the "
            "compiler or driver reports it"
        )
    yield quiet(f"type  {_next_command(result)}")


def _headline(result: FitResult) -> str:
    best = min(result.needs, key=lambda need: (not need.fits, need.n_chips))
    subject = "training state of" if result.kind == "train" else best.dtype
    fits = "fits" if best.fits else "does not fit"
    return (
        f"{subject} {result.model} ({units.show_count(result.n_parameters)} parameters) {fits} on "
        f"{best.system} ({chips(best.n_chips)}), {_left(best.rooms[0])}."
    )


def _left(room: Room) -> str:
    """`3.2 GB left`, or `short of 1.1 GB`."""
    if room.fits:
        return f"{units.show_bytes(room.left_bytes)} left"
    return f"short of {units.show_bytes(-room.left_bytes)}"


def _serving(result: FitResult) -> Iterator[Block]:
    kv = f"{result.batch:,} x KV" if result.batch and result.batch > 1 else "KV"
    heads = ["weights", ">", ">KV a token", f">{kv}", "machine", ">chips", ">sequences", ">left"]
    rows = []
    for need in result.needs:
        room = need.rooms[0]
        dtypes = need.dtype
        if need.kv_dtype and need.kv_dtype != need.dtype:
            dtypes += f", KV {need.kv_dtype}"
        row = [
            dtypes,
            units.show_bytes(need.held["weights"]),
            units.show_bytes(need.kv_bytes_per_token or 0.0),
            units.show_bytes(need.held["kv_cache"]),
            need.system,
            f"{need.n_chips:,}",
            " / ".join(f"{room.sequences:,}" if room.fits else "none" for room in need.rooms),
            units.show_bytes(room.left_bytes) if room.fits else "does not fit",
        ]
        rows.append(row)
    yield table(heads, rows)
    capacities = "the documented memory"
    if len(result.needs[0].rooms) > 1:
        capacities = "documented / usable memory"
    yield f"sequences = of {result.context:,} tokens whose KV cache fits, by {capacities}"


def _training(result: FitResult, need: Need) -> Iterator[Block]:
    n_parameters = units.show_count(result.n_parameters)

    def row(part: str, bytes_per_parameter: float, n_bytes: float) -> list[str]:
        product = f"{n_parameters} × {bytes_per_parameter:g} B"
        return [f"  {part}", product, units.show_bytes(n_bytes)]

    rows = []
    for part, n_bytes in need.held.items():
        rows.append(row(part, need.bytes_per_parameter[part], n_bytes))
    rows.append(row("state", sum(need.bytes_per_parameter.values()), need.held_bytes))
    yield table(["part", "parameters × bytes", ">"], rows)
    capacity = units.show_bytes(need.rooms[0].hbm_bytes)
    machine = f"{need.system}, {chips(need.n_chips)}: {capacity}"
    labels = {f"left, {room.capacity}": _tokens(room) for room in need.rooms}
    yield labelled([("machine", machine), *labels.items()])


def _tokens(room: Room) -> str:
    if not room.fits:
        return _left(room)
    return (
        f"{units.show_bytes(room.left_bytes)}: the layer inputs of "
        f"{room.tokens_per_chip or 0:,} tokens a chip (remat full)"
    )


def _next_command(result: FitResult) -> str:
    system = result.needs[0].system
    if result.kind == "train":
        return f"shardwise plan {result.model} {system} --train --batch SEQUENCESxLENGTH"
    return f"shardwise models {result.model} --kv --seq {result.context}"
