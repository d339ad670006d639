"""Names of operations outside all name scopes.

Such an operation is called after its primitive, with its line in the source if the program has it;
the arrays that a loop over layers stacks have names of their own.
"""

from __future__ import annotations

import re

from shardwise.check.hlo.scopes import MADE_BY_JAX, model_operation

SHOWN = 2  # names that are shown of combined operations
# A scan reads its arrays by slices, and writes at the end of each turn what the backward pass needs
# of it, or its results.
_TURN = r"while/body/(?:closed_call/)?(?:jit\(\w+\)/)?"
_SLICED = re.compile(rf"{_TURN}dynamic_slice$")
_STACKED = re.compile(rf"{_TURN}dynamic_update_slice$")
SAVED = "saved activations"
STACKED_GRADIENTS = "stacked gradients"
_MADE_BY_COMPILER = re.compile(r"\.\d+$|\)$")  # ends of parts that are no primitives


def primitive(op_name: str) -> str:
    """What an operation outside all name scopes is; empty if JAX has not traced it.

    >>> primitive("jit(step)/jvp()/dot_general"), primitive("jit(step)/broadcast.3")
    ('dot_general', '')
    """
    _, slash, last = op_name.rpartition("/")
    if not slash or last in MADE_BY_JAX or _MADE_BY_COMPILER.search(last) or is_slice(op_name):
        return ""
    return last


def is_slice(op_name: str) -> bool:
    """Whether an operation reads what a scan gives to a turn, and so belongs to its reader."""
    return bool(_SLICED.search(op_name))


def stacked(op_name: str) -> str:
    """The name of the arrays that a loop over layers stacks, where an operation writes them.

    >>> stacked("jit(step)/jvp()/while/body/dynamic_update_slice")
    'saved activations'
    """
    if not _STACKED.search(op_name):
        return ""
    if "transpose(" in op_name:
        return STACKED_GRADIENTS
    return SAVED if "jvp(" in op_name else ""


def has_name(op_name: str) -> bool:
    """Whether an operation has a name of its own, which others may take from it."""
    return bool(model_operation(op_name)[0] or primitive(op_name))


def short_name(name: str) -> str:
    """The name of an operation for people: of many that the compiler has combined, the first.

    >>> short_name("attn.q+attn.k+attn.v+mlp.up")
    'attn.q and 3 more'
    """
    first, *others = name.split("+")
    if len(others) < SHOWN:
        return name
    return f"{first} and {len(others)} more"
