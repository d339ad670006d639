"""Parsers of hardware on the command line: chips, machines, and lists of machines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import shardwise as sw
from shardwise.cli.inputs import Inputs, names_of_set_options
from shardwise.cli.ranges import MAX_POINTS, parse_values
from shardwise.errors import BadInput
from shardwise.hardware import chip_of
from shardwise.hardware.machine_names import split_name

ANY = "any"  # every chip of the catalogue
_OTHER_SIZE = re.compile(r"[0-9][^a-wyz:]*", re.IGNORECASE)  # of the chip before: 128, 4x4x8
_SIZES = re.compile(r"(?P<chip>[^:,]+):(?P<sizes>[^:,x*]+-[^:,x]+)$")
Machine = TypeVar("Machine", sw.System, sw.System | sw.Chip)


def has_size(hardware: str) -> bool:
    """Whether the text names a machine (`v5e:4x4`, `8xh100`) and not only a chip (`v5e`)."""
    head = hardware.split(",")[0]
    return ":" in head or bool(split_name(head)[1])


def parse_machine(text: str) -> sw.System | sw.Chip:
    """A machine, or a chip if the text has no size."""
    if has_size(text):
        return sw.hardware(text)
    return sw.chip(text)


def is_machine(text: str) -> bool:
    """Whether a text names a machine or a chip."""
    try:
        parse_machine(text)
    except BadInput:
        return False
    return True


def parse_chip(text: str) -> sw.Chip:
    """The chip of a text that names a chip (`v5e`) or a machine (`v5e:4x4`)."""
    return chip_of(parse_machine(text))


def compared_chips(text: str, *, with_one: bool = False) -> list[sw.Chip]:
    """The chips of `any` or of a list, all of whose machines are compared; none for one machine.

    Args:
        with_one: whether a chip alone is such a list.

    Raises:
        BadInput: a part of the list is wrong, or has a size.
    """
    if text == ANY:
        from shardwise.plan.machine_front import catalog_chips

        return catalog_chips()
    n_machines = sum("=" not in part for part in text.split(","))
    if n_machines < 2 and (has_size(text) or not with_one):
        return []
    machines = parse_machines(text, parse_machine)
    sized = [machine.name for machine in machines if isinstance(machine, sw.System)]
    if sized:
        raise BadInput(
            f"{', '.join(sized)}: machines are chosen from chips without sizes, as h100,v5p, or "
            "any. shardwise sweep compares machines."
        )
    return [chip_of(machine) for machine in machines]


def refuse_with_many(inputs: Inputs, hardware: str, settings: Mapping[str, object]) -> None:
    """Refuse options of one machine, by name those that are set, where many are compared."""
    names = names_of_set_options(settings)
    if names:
        inputs.refuse(f"{hardware} is many machines, of which {names} cannot be said.")


def parse_systems(text: str) -> list[sw.System]:
    """Parse a list of machines: `h100:64-256*2,v5e:4x4`.

    A range, as 64-256*2, is in numbers of chips. A part without a chip is another size of the
    preceding chip: `h100:64,128`. A part `KEY=VALUE` overrides a value of the preceding machine.

    Raises:
        BadInput: with every machine that is wrong.
    """
    return parse_machines(text, sw.hardware)


def parse_machines(text: str, parse: Callable[[str], Machine]) -> list[Machine]:
    """Parse a list as `parse_systems` does, and each machine in it by `parse`."""
    inputs = Inputs()
    machines: list[Machine] = []
    for word in _expanded(inputs, text):
        machine = inputs.read(parse, word)
        if machine:
            machines.append(machine)
    if len(machines) > MAX_POINTS:
        inputs.refuse(
            f"hardware is {len(machines):,} machines; at most {MAX_POINTS:,} are compared."
        )
    counts = Counter(machine.name for machine in machines)
    for name, count in counts.items():
        if count > 1:
            inputs.refuse(f"hardware {name} is given twice.")
    inputs.done()
    return machines


def _expanded(inputs: Inputs, text: str) -> Iterator[str]:
    """The text of each single machine of a list, with its overrides."""
    groups: list[list[str]] = []  # machine, override, override ...
    for part in text.split(","):
        word = part.strip()
        if "=" in word and groups:
            groups[-1].append(word)
        elif _OTHER_SIZE.fullmatch(word) and groups and ":" in groups[-1][0]:
            chip = groups[-1][0].partition(":")[0]
            groups.append([f"{chip}:{word}"])
        else:
            groups.append([word])
    for machine, *overrides in groups:
        for name in _sizes(inputs, machine):
            yield ",".join((name, *overrides))


def _sizes(inputs: Inputs, machine: str) -> list[str]:
    """`h100:8-32*2` -> three machines; a machine without a range -> that machine alone."""
    match = _SIZES.fullmatch(machine)
    sizes = inputs.optional(parse_values, match and match["sizes"], "chips")
    if not match or not sizes:
        return [machine]
    return [f"{match['chip']}:{n_chips}" for n_chips in sizes]
