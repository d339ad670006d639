"""Parsers of the values on a command line, whose problems are all reported at once."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from shardwise import units
from shardwise.errors import BadInput, Problems, UnknownName, file_error

if TYPE_CHECKING:
    from shardwise.plan.schema.json_io import AnyPlan
    from shardwise.strategy.mesh import Mesh

T = TypeVar("T")
P = ParamSpec("P")

MAX_PLANS = 100  # in one list: nobody reads more


class Inputs(Problems):
    """Parses the values of a command line and collects their problems, which `done` raises."""

    def optional(
        self,
        parse: Callable[Concatenate[str, P], T],
        text: str | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """As `read` for a text that is not empty; None for an empty text."""
        if not text:
            return None
        return self.read(parse, text, *args, **kwargs)


def names_of_set_options(options: Mapping[str, object]) -> str:
    """The names of the options that have a value: `--batch, --tokens`; empty without one."""
    return ", ".join(name for name, value in options.items() if value)


def parse_word(text: str, what: str, known: Iterable[str]) -> str:
    """Check that `text` is one of the `known` words; `what` names it in the error.

    Raises:
        UnknownName: it is not.
    """
    if text not in known:
        raise UnknownName(what, text, known)
    return text


def plain_dtypes(text: str) -> str:
    """A list of dtypes with the names under which they are planned: `mxfp8,bf16` -> `fp8,bf16`."""
    words = (word.strip() for word in text.split(","))
    return ",".join(units.DTYPE_FORMATS.get(word.lower(), word) for word in words)


def parse_words(text: str, what: str, known: Iterable[str]) -> tuple[str, ...]:
    """Parse a list of `known` words, `bf16,int8`; `what` names a word in errors.

    Raises:
        BadInput: with every word that is unknown, or in the list twice.
    """
    words = tuple(word.strip() for word in text.split(","))
    inputs = Inputs()
    for word in dict.fromkeys(words):
        inputs.read(parse_word, word, what, known)
        if words.count(word) > 1:
            inputs.refuse(f"{what} {word} is given twice.")
    inputs.done()
    return words


def parse_mesh(text: str, known: Sequence[str] = (), what: str = "mesh axis") -> dict[str, int]:
    """Parse the sizes of mesh axes: `tensor=8,fsdp=32`.

    Args:
        known: the allowed names of axes; empty to allow any.
        what: a name is, in messages.

    Raises:
        BadInput: with every part that is wrong.
    """
    sizes = units.parse_sizes(text.split(","), what)
    inputs = Inputs()
    if known:
        for name in sizes:
            inputs.read(parse_word, name, what, known)
    inputs.done()
    return sizes


def parse_fixed(text: str) -> dict[str, int | str]:
    """Parse the settings of a training strategy: `tensor=8,schedule=1f1b`.

    Raises:
        BadInput: with every part that is wrong.
    """
    from shardwise.search.training.forms import names, words

    return parse_settings(text, words(), names())


def parse_settings(
    text: str, words: Mapping[str, tuple[str, ...]], known: tuple[str, ...]
) -> dict[str, int | str]:
    """Parse settings that are numbers or words: `tensor=8,schedule=1f1b`.

    Args:
        words: name of a setting -> the words that are allowed as its value.
        known: the names of all settings.

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
        elif name == "zero" and "zero" in known and equals:  # the only number that may be 0
            settings[name] = inputs.read(units.parse_whole, value, name, low=0)
        else:
            size_parts.append(part)
    numbers = inputs.read(parse_mesh, ",".join(size_parts), known, "setting") if size_parts else {}
    inputs.done()
    return {**numbers, **settings}


def split_settings(settings: Mapping[str, int | str]) -> tuple[Mesh, dict[str, int | str]]:
    """Divide the settings of a whole strategy into its mesh and the other settings."""
    from shardwise.strategy.mesh import Mesh

    sizes: dict[str, int] = {}
    other_settings: dict[str, int | str] = {}
    for name, value in settings.items():
        if name in roles() and isinstance(value, int):
            sizes[name] = value
        else:
            other_settings[name] = value
    return Mesh(**sizes), other_settings


def roles() -> tuple[str, ...]:
    """The names of the mesh axes of a plan."""
    from shardwise.strategy.mesh import Mesh

    return tuple(field.name for field in fields(Mesh))


def parse_output_file(path: str) -> str:
    """Check that a file can be written, before the work whose result it shall hold.

    Raises:
        BadFile: it cannot.
    """
    written = path
    problem = 0
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            problem = errno.EISDIR
    except FileNotFoundError:
        written = os.path.dirname(path) or "."
        if not os.path.isdir(written):
            problem = errno.ENOENT
    except OSError as error:
        problem = error.errno or errno.EINVAL
    if not problem and not os.access(written, os.W_OK):
        problem = errno.EACCES
    if problem:
        refusal = OSError(problem, os.strerror(problem))
        raise file_error(path, refusal, "Nothing was saved.")
    return path


def parse_chip_file(path: str) -> str:
    """Check that the file of a chip can be written, and that plans will read it.

    Raises:
        BadInput: its name does not end in .toml.
        BadFile: it cannot be written.
    """
    parse_output_file(path)
    if not path.endswith(".toml"):
        raise BadInput(f"{path}: the name of a chip's file ends in .toml: {path}.toml.")
    return path


def parse_top(text: str) -> int:
    """Parse --top, the number of plans to list.

    Raises:
        BadInput: not a number from 1 to MAX_PLANS.
    """
    count = units.parse_whole(text, "--top")
    if count > MAX_PLANS:
        raise BadInput(
            f"--top {count:,} is more than {MAX_PLANS}, which is as many as can be read."
        )
    return count


def load_plan(path: str) -> AnyPlan:
    """Load a saved plan from a file, a pipe such as /dev/fd/63, or `-` for stdin.

    Raises:
        BadFile: there is no such file, or it holds no valid plan.
    """
    import shardwise as sw

    if path != "-":
        return sw.load(path)
    from shardwise.plan.schema.json_io import decode

    stdin = getattr(sys.stdin, "buffer", sys.stdin)  # a program that calls `main` may replace it
    return decode(stdin.read(), "stdin")
