"""The words of a command line -> values, with every problem of the line told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from shardwise import units
from shardwise.errors import BadInput, ShardwiseError, UnknownName, raise_all
from shardwise.hardware import Chip, parse_chip, parse_system

if TYPE_CHECKING:
    from shardwise.strategy.mesh import Mesh

T = TypeVar("T")
P = ParamSpec("P")


class Inputs:
    """Reads one word after the other and keeps every problem until `done`."""

    def __init__(self) -> None:
        self._errors: list[ShardwiseError] = []

    def read(self, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`parse(...)`, its problems kept. After a problem `done` raises: nobody sees the None."""
        try:
            return parse(*args, **kwargs)
        except ShardwiseError as error:
            self._errors.append(error)
            return None  # type: ignore[return-value]

    def refuse(self, problem: str) -> None:
        """Keep a problem of the command line itself."""
        self._errors.append(BadInput(problem))

    def done(self) -> None:
        """Raise what was found: one error as it is, several as one."""
        if len(self._errors) == 1:
            raise self._errors[0]
        raise_all(BadInput, [p for error in self._errors for p in error.problems])


def parse_word(text: str, what: str, known: Iterable[str]) -> str:
    """A word of a list.

    Raises:
        UnknownName: it is not in the list.
    """
    if text not in known:
        raise UnknownName(what, text, known)
    return text


def parse_words(text: str, what: str, known: Iterable[str]) -> tuple[str, ...]:
    """`bf16,int8` -> two words of a list.

    Raises:
        BadInput: with every word that is not in the list, or is there twice.
    """
    words = tuple(word.strip() for word in text.split(","))
    inputs = Inputs()
    for word in dict.fromkeys(words):
        inputs.read(parse_word, word, what, known)
        if words.count(word) > 1:
            inputs.refuse(f"{what} {word} is given twice.")
    inputs.done()
    return words


def parse_mesh(text: str, known: Sequence[str] = ()) -> dict[str, int]:
    """`tensor=8,fsdp=32` -> sizes of mesh axes; `known` lists the names there are, if they are few.

    Raises:
        BadInput: with every part that is wrong.
    """
    from shardwise.estimate.matmul import parse_sizes

    found = parse_sizes(text.split(","), "mesh axis")
    inputs = Inputs()
    for name in found if known else ():
        inputs.read(parse_word, name, "mesh axis", known)
    inputs.done()
    return found


def parse_fixed(text: str) -> dict[str, int | str]:
    """`tensor=8,schedule=1f1b` -> what is given of a strategy.

    Raises:
        BadInput: with every part that is wrong.
    """
    from shardwise.search.training.forms import names, words

    return parse_given(text, words(), names())


def parse_given(
    text: str, words: Mapping[str, tuple[str, ...]], known: tuple[str, ...]
) -> dict[str, int | str]:
    """`tensor=8,schedule=1f1b` -> numbers and words.

    Args:
        words: name -> the words that it may be.
        known: every name.

    Raises:
        BadInput: with every part that is wrong.
    """
    inputs = Inputs()
    found: dict[str, int | str] = {}
    rest = []
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name in found:
            inputs.refuse(f"{name} is given twice.")
        elif name in words:
            found[name] = inputs.read(parse_word, value, name, words[name])
        elif name == "zero" and "zero" in known and equals:  # the one number that may be none
            found[name] = inputs.read(units.parse_whole, value, name, low=0)
        else:
            rest.append(part)
    sizes = inputs.read(parse_mesh, ",".join(rest), known) if rest else {}
    inputs.done()
    return {**sizes, **found}


def split_of(whole: Mapping[str, int | str]) -> tuple[Mesh, dict[str, int | str]]:
    """The mesh of what is given of a whole strategy, and the rest of it."""
    from shardwise.strategy.mesh import Mesh

    sizes = {name: n for name, n in whole.items() if name in roles() and isinstance(n, int)}
    return Mesh(**sizes), {name: value for name, value in whole.items() if name not in sizes}


def roles() -> tuple[str, ...]:
    """The mesh axes that a plan has."""
    from shardwise.strategy.mesh import Mesh

    return tuple(field.name for field in fields(Mesh))


def is_sized(hardware: str) -> bool:
    """Whether the text names a machine (`v5e:4x4`), not a chip alone."""
    return ":" in hardware.split(",")[0]


def parse_chip_of(hardware: str) -> Chip:
    """The chip of `v5e` or of `v5e:4x4`."""
    return parse_system(hardware).chip if is_sized(hardware) else parse_chip(hardware)
