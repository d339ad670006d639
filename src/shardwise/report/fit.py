"""What a model needs in memory, the smallest machine that holds it, and what is left there."""

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
    """What is left on a machine when its chips have some capacity.

    Args:
        capacity: which figure of the chip: `documented`, or `usable` as the compiler or driver
            reports it.
        hbm_bytes: of the whole machine.
        left_bytes: beyond what is held; negative where it does not fit.
        sequences: of the asked context (serving).
        tokens_per_chip: of layer inputs (training).
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
    """One way to hold the model, and where.

    Args:
        held: bytes by part.
        system: the machine: the smallest, or the one that was asked about.
        rooms: one for each capacity that is known of the chip.
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
        """By the documented capacity."""
        return self.rooms[0].fits

    @property
    def held_bytes(self) -> float:
        """The sum of the parts."""
        return sum(self.held.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The answer of `fit`.

    Args:
        kind: `serve` or `train`.
        hardware: as it was asked.
        n_parameters: stored.
        context: tokens of a sequence (serving).
        batch: sequences whose cache is held (serving).
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
    """The result as a document, with the sums that its lines show."""
    import msgspec

    made: dict[str, Any] = msgspec.to_builtins(result)
    for need, raw in zip(result.needs, made["needs"], strict=True):
        raw["held_bytes"] = need.held_bytes
    return made


def blocks(result: FitResult) -> Iterator[Block]:
    """The answer: serving by dtype, training by part."""
    first = result.needs[0]
    yield strong(_headline(result))
    yield from (_serving(result) if result.kind == "serve" else _training(result, first))
    rooms = first.rooms
    if len(rooms) > 1:
        documented, usable = (show_value(room.hbm_bytes_per_chip, "B") for room in rooms)
        yield quiet(
            f"memory per chip: {documented} documented; {usable} "
            f"({units.show_bytes(rooms[1].hbm_bytes_per_chip)}) usable by a program, as the "
            "compiler or driver reports it"
        )
    yield quiet(f"type  {_next(result)}")


def _headline(result: FitResult) -> str:
    best = min(result.needs, key=lambda need: (not need.fits, need.n_chips))
    room = best.rooms[0]
    left = f"{_left(room)} left" if best.fits else f"short of {units.show_bytes(-room.left_bytes)}"
    kind = f"{best.dtype} " if result.kind == "serve" else "training state of "
    return (
        f"{kind}{result.model} ({units.show_count(result.n_parameters)} parameters) "
        f"{'fits' if best.fits else 'does not fit'} on {best.system} "
        f"({chips(best.n_chips)}), {left}."
    )


def _left(room: Room) -> str:
    return units.show_bytes(room.left_bytes)


def _serving(result: FitResult) -> Iterator[Block]:
    usable = len(result.needs[0].rooms) > 1
    held = f"{result.batch:,} x KV" if result.batch and result.batch > 1 else "KV"
    heads = ["weights", ">", ">KV a token", f">{held}", "machine", ">chips", ">sequences", ">left"]
    rows = []
    for need in result.needs:
        room = need.rooms[0]
        kv_name = need.kv_dtype if need.kv_dtype != need.dtype else ""
        rows.append(
            [
                f"{need.dtype}{f', KV {kv_name}' if kv_name else ''}",
                units.show_bytes(need.held["weights"]),
                units.show_bytes(need.kv_bytes_per_token or 0.0),
                units.show_bytes(need.held["kv_cache"]),
                need.system,
                f"{need.n_chips:,}",
                " / ".join(f"{r.sequences:,}" if r.fits else "none" for r in need.rooms),
                units.show_bytes(room.left_bytes) if room.fits else "does not fit",
            ]
        )
    yield table(heads, rows)
    counted = "documented / usable memory" if usable else "the documented memory"
    yield f"sequences = of {result.context:,} tokens whose KV cache fits, by {counted}"


def _training(result: FitResult, need: Need) -> Iterator[Block]:
    n = units.show_count(result.n_parameters)
    rows = [
        [f"  {part}", f"{n} × {need.bytes_per_parameter[part]:g} B", units.show_bytes(n_bytes)]
        for part, n_bytes in need.held.items()
    ]
    each = sum(need.bytes_per_parameter.values())
    rows.append(["  state", f"{n} × {each:g} B", units.show_bytes(need.held_bytes)])
    yield table(["part", "parameters × bytes", ">"], rows)
    room = need.rooms[0]
    yield labelled(
        [
            (
                "machine",
                f"{need.system}, {chips(need.n_chips)}: {units.show_bytes(room.hbm_bytes)}",
            ),
            *((f"left, {r.capacity}", _tokens(r)) for r in need.rooms),
        ]
    )


def _tokens(room: Room) -> str:
    if not room.fits:
        return f"short of {units.show_bytes(-room.left_bytes)}"
    return (
        f"{units.show_bytes(room.left_bytes)}: the layer inputs of "
        f"{room.tokens_per_chip or 0:,} tokens a chip (remat full)"
    )


def _next(result: FitResult) -> str:
    system = result.needs[0].system
    if result.kind == "train":
        return f"shardwise plan {result.model} {system} --train --batch SEQUENCESxLENGTH"
    return f"shardwise models {result.model} --kv --seq {result.context}"
