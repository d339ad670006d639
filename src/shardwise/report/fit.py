"""The memory of a model, the smallest machine that holds it, and the memory left on it."""

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
    """The memory that a model leaves on a machine, at one value of the chip's HBM capacity.

    Args:
        capacity: `documented` by the vendor, or `usable` as the compiler or driver reports it.
        hbm_bytes: capacity of the whole machine.
        left_bytes: capacity minus the bytes of the model; negative if the model does not fit.
        sequences: the largest number of sequences whose KV cache fits (serving).
        tokens_per_chip: the largest number of tokens whose layer inputs fit in the memory that
            the training state leaves (training).
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
    """The memory of a model in one dtype, and a machine that holds it.

    Args:
        held: part of the model's memory -> bytes.
        system: name of the given machine, or of the smallest one that the model fits on.
        rooms: the memory left, at each known capacity of the chip; the documented one first.
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
        """Whether the model fits in the documented capacity."""
        return self.rooms[0].fits

    @property
    def held_bytes(self) -> float:
        """Bytes of all parts together."""
        return sum(self.held.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The answer of `fit`.

    Args:
        kind: `serve` or `train`.
        hardware: name of the machine or chip, as given.
        context: tokens of a sequence (serving).
        batch: sequences whose KV cache is part of the model's memory (serving).
        needs: one per dtype for serving, a single one for training.
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
    """The result as a JSON document, with the total bytes of each dtype."""
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
        documented = need.rooms[0].hbm_bytes_per_chip
        usable = need.rooms[1].hbm_bytes_per_chip
        usable_text = show_value(usable, "B")
        if usable_text != units.show_bytes(usable):
            usable_text += f" ({units.show_bytes(usable)})"
        yield quiet(
            f"memory per chip: {show_value(documented, 'B')} documented; {usable_text} usable by a "
            "program, as the compiler or driver reports it"
        )
    yield quiet(f"type  {_next_command(result)}")


def _headline(result: FitResult) -> str:
    best = min(result.needs, key=lambda need: (not need.fits, need.n_chips))
    subject = best.dtype
    if result.kind == "train":
        subject = "training state of"
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
    kv = "KV"
    if result.batch and result.batch > 1:
        kv = f"{result.batch:,} x KV"
    headers = ["weights", ">", ">KV a token", f">{kv}", "machine", ">chips", ">sequences", ">left"]
    rows = []
    for need in result.needs:
        documented = need.rooms[0]
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
            " / ".join(map(_sequences, need.rooms)),
            units.show_bytes(documented.left_bytes) if documented.fits else "does not fit",
        ]
        rows.append(row)
    yield table(headers, rows)
    capacities = "the documented memory"
    if len(result.needs[0].rooms) > 1:
        capacities = "documented / usable memory"
    yield f"sequences = of {result.context:,} tokens whose KV cache fits, by {capacities}"


def _sequences(room: Room) -> str:
    if not room.fits:
        return "none"
    return f"{room.sequences:,}"


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
    lines = [("machine", machine)]
    for room in need.rooms:
        lines.append((f"left, {room.capacity}", _tokens(room)))
    yield labelled(lines)


def _tokens(room: Room) -> str:
    """The bytes left by the training state, and the tokens whose layer inputs fit in them."""
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
