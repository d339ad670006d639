"""What the choice of a machine for training and for serving have in common: cost against time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from shardwise.errors import BadInput
from shardwise.hardware import Chip, catalog_chip, chip_names


class Priced(Protocol):
    """A machine with what its work costs, and the time that the user wants to be short."""

    @property
    def cost(self) -> float:
        """Dollars."""

    @property
    def seconds(self) -> float:
        """Time of the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipPrice:
    """A price of the catalogue or of the user, its month, and whether a first source states it."""

    usd_per_hour: float
    as_of: str
    confirmed: bool


Row = TypeVar("Row", bound=Priced)


def catalog_chips() -> list[Chip]:
    """The TPUs and GPUs of the catalogue that are made for data centers."""
    chips = [catalog_chip(name) for name in chip_names()]
    return [chip for chip in chips if chip.kind in ("gpu", "tpu") and chip.market == "data center"]


def price_of(chip: Chip) -> ChipPrice:
    """The price of a chip that has one."""
    figure = chip.figures["price.chip_hour"]
    return ChipPrice(
        usd_per_hour=chip.usd_per_chip_hour or 0.0,
        as_of=figure.as_of or "",
        confirmed=figure.confirmed,
    )


def split_by_price(chips: Sequence[Chip]) -> tuple[list[Chip], tuple[str, ...]]:
    """The chips that have a price, and the names of the others.

    Raises:
        BadInput: no chip has a price.
    """
    priced = [chip for chip in chips if chip.usd_per_chip_hour]
    without_price = tuple(chip.name for chip in chips if not chip.usd_per_chip_hour)
    if not priced:
        raise BadInput(
            f"no price is known of {', '.join(without_price)}. Give one: "
            f"{without_price[0]},price=3USD/h."
        )
    return priced, without_price


def pareto_front(rows: Iterable[Row]) -> list[Row]:
    """Rows than which no other is both cheaper and faster, cheapest first."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.cost, row.seconds)):
        if not front or row.seconds < front[-1].seconds:
            front.append(row)
    return front


def is_dominated(rows: Sequence[Priced], cost: float, seconds: float) -> bool:
    """Whether a row costs at most `cost` and takes at most `seconds`."""
    return any(row.cost <= cost and row.seconds <= seconds for row in rows)
