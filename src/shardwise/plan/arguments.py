"""Checks of the arguments of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.errors import BadInput, raise_all


def check_types(arguments: Sequence[tuple[object, type | tuple[type, ...], str]]) -> None:
    """Refuse arguments of another type: a plan takes values, not names.

    Args:
        arguments: (argument, its types, the calls that return them).

    Raises:
        BadInput: every argument of a wrong type.
    """
    problems = []
    for argument, types, source in arguments:
        if not isinstance(argument, types):
            problems.append(f"{argument!r} is not what {source} returns.")
    raise_all(BadInput, problems)
