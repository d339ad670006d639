"""The words of a command line -> values, with every problem of the line reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from shardwise import units
from shardwise.errors import BadInput, ShardwiseError, UnknownName, raise_all

if TYPE_CHECKING:
    from shardwise.strategy.mesh import Mesh

T = TypeVar("T")
P = ParamSpec("P")

MAX_PLANS = 100  # in one list of plans: more cannot be read


class Inputs:
    """Reads one value after the other and collects every problem until `done`."""

    def __init__(self) -> None:
        self._errors: list[ShardwiseError] = []

    def read(self, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`parse(...)`, its problems collected. After one `done` raises: nobody sees the None."""
        try:
            return parse(*args, **kwargs)
        except ShardwiseError as error:
            self._errors.append(error)
            return None  # type: ignore[return-value]

    def optional(
        self,
        parse: Callable[Concatenate[str, P], T],
        text: str | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """`parse(text, ...)`, or None where there is no text."""
        if not text:
            return None
        return self.read(parse, text, *args, **kwargs)

    def refuse(self, problem: str) -> None:
        """Add a problem of the command line itself."""
        self._errors.append(BadInput(problem))

    def done(self) -> None:
        """Raise the problems: one error as it is, several as one."""
        if len(self._errors) == 1:
            raise self._errors[0]
        problems: list[str] = []
        for error in self._errors:
            problems += error.problems
        raise_all(BadInput, problems)


def names_set(options: Mapping[str, object]) -> str:
    """The names of the options that have a value: `--batch, --tokens`."""
    return ", ".join(name for name, value in options.items() if value)


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
    sizes = units.parse_sizes(text.split(","), "mesh axis")
    inputs = Inputs()
    if known:
        for name in sizes:
            inputs.read(parse_word, name, "mesh axis", known)
    inputs.done()
    return sizes


def parse_fixed(text: str) -> dict[str, int | str]:
    """`tensor=8,schedule=1f1b` -> the part of a training strategy that is fixed.

    Raises:
        BadInput: with every part that is wrong.
    """
    from shardwise.search.training.forms import names, words

    return parse_settings(text, words(), names())


def parse_settings(
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
    settings: dict[str, int | str] = {}
    size_parts = []
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name in settings:
            inputs.refuse(f"{name} is given twice.")
        elif name in words:
            settings[name] = inputs.read(parse_word, value, name, words[name])
        elif name == "zero" and "zero" in known and equals:  # the one number that may be 0
            settings[name] = inputs.read(units.parse_whole, value, name, low=0)
        else:
            size_parts.append(part)
    numbers = inputs.read(parse_mesh, ",".join(size_parts), known) if size_parts else {}
    inputs.done()
    return {**numbers, **settings}


def split_of(settings: Mapping[str, int | str]) -> tuple[Mesh, dict[str, int | str]]:
    """The mesh of a whole strategy, and the rest of its settings."""
    from shardwise.strategy.mesh import Mesh

    sizes: dict[str, int] = {}
    words: dict[str, int | str] = {}
    for name, value in settings.items():
        if name in roles() and isinstance(value, int):
            sizes[name] = value
        else:
            words[name] = value
    return Mesh(**sizes), words


def roles() -> tuple[str, ...]:
    """The mesh axes that a plan has."""
    from shardwise.strategy.mesh import Mesh

    return tuple(field.name for field in fields(Mesh))


def parse_top(text: str) -> int:
    """How many plans to list.

    Raises:
        BadInput: more than can be read.
    """
    count = units.parse_whole(text, "--top")
    if count > MAX_PLANS:
        raise BadInput(
            f"--top {count:,} is more than {MAX_PLANS}, which is as many as can be read."
        )
    return count
