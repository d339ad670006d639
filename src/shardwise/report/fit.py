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
    """The memory that a model leaves on a machine, counted in one of two ways.

    Args:
        capacity: `documented` for the vendor's capacity with the state alone in it, `planned` for
            what a plan leaves of the memory that programs see.
        hbm_bytes: capacity of the whole machine.
        left_bytes: bytes left; negative if the model does not fit.
        sequences: the largest number of sequences that fit (serving).
    """

    capacity: str
    hbm_bytes_per_chip: float
    hbm_bytes: float
    fits: bool
    left_bytes: float
    sequences: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The memory of a model in one dtype, and a machine that holds it.

    Args:
        held: part of the model's memory -> bytes.
        system: name of the given machine, or of the smallest one that the model fits on.
        batch: sequences of the training step that was planned; None in serving.
        rooms: the memory left, documented and planned.
    """

    dtype: str
    kv_dtype: str | None
    held: dict[str, float]
    bytes_per_parameter: dict[str, float]
    kv_bytes_per_token: float | None
    kv_bytes_per_sequence: float | None
    system: str
    n_chips: int
    batch: int | None
    rooms: tuple[Room, Room]

    @property
    def fits(self) -> bool:
        """Whether a plan of the model fits."""
        return self.rooms[1].fits

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
        context: tokens of a sequence.
        batch: sequences whose KV cache is part of the model's memory (serving).
        needs: one per dtype for serving, a single one for training.
    """

    model: str
    hardware: str
    kind: str
    n_parameters: int
    context: int
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
    documented, planned = (room.hbm_bytes_per_chip for room in need.rooms)
    if documented != planned:
        yield quiet(
            f"memory per chip: {show_value(documented, 'B')} documented; "
            f"{show_value(planned, 'B')} by the driver, which plans count with"
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
        f"{best.system} ({chips(best.n_chips)}), {_left(best.rooms[1])}."
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
        planned = need.rooms[1]
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
            units.show_bytes(planned.left_bytes) if planned.fits else "does not fit",
        ]
        rows.append(row)
    yield table(headers, rows)
    yield (
        f"sequences = of {result.context:,} tokens: whose KV cache fits beside the weights / that "
        "a plan holds, beside activations and the memory that engines keep free"
    )
    if any(need.kv_dtype == need.dtype for need in result.needs):
        yield "KV cache in the dtype of the weights, unless a row or --kv-dtype names another"


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
    documented, planned = need.rooms
    capacity = units.show_bytes(documented.hbm_bytes)
    beside = f"beside a sequence of {result.context:,} tokens a chip and what is kept free"
    lines = [
        ("machine", f"{need.system}, {chips(need.n_chips)}: {capacity}"),
        ("left, documented", f"{_left(documented)} beside the state"),
        ("left, planned", f"{_left(planned)} {beside}"),
    ]
    yield labelled(lines)


def _next_command(result: FitResult) -> str:
    system = result.needs[0].system
    if result.kind == "train":
        batch = f"{result.needs[0].batch}x{result.context}"
        return f"shardwise plan {result.model} {system} --train --batch {batch}"
    return f"shardwise models {result.model} --kv --seq {result.context}"
