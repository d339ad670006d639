"""Check the arguments of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.errors import BadInput, raise_all


def check_types(arguments: Sequence[tuple[object, type | tuple[type, ...], str]]) -> None:
    """Check the types of arguments. Users may pass the name of a model instead of the model.

    Args:
        arguments: for each argument its value, the allowed types, and the call that returns such a
            value, as the message names it: "sw.model(...)".

    Raises:
        BadInput: an argument has a wrong type; the error lists all of them.
    """
    problems = []
    for argument, types, source in arguments:
        if not isinstance(argument, types):
            problems.append(f"{argument!r} is not what {source} returns.")
    raise_all(BadInput, problems)
