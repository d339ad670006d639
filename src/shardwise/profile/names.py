"""The operation of the model that an operation of the program belongs to, by its name scopes.

Programs of this package have the names of plans (`attn.q`, `mlp.up`). Of others the path of name
scopes is kept, without what JAX adds to it:

    jit(step)/transpose(jvp(Model))/while/body/layer/mlp/dot_general      Model/layer/mlp

An operation outside all scopes has the name of its primitive, with its line in the source if the
program has it; the arrays that a loop over layers stacks have one of their own.
"""

from __future__ import annotations

import re

from shardwise.check.hlo.scopes import scope

BACKWARD = "backward"
SHOWN = 2  # names that are shown of combined operations
_PROGRAM = re.compile(r"p?jit\([^()]*\)")
_TRANSFORM = re.compile(r"(?:jvp|transpose|vmap|remat|checkpoint)\(([^()]*)\)")
# Parts of a path that JAX writes for control flow and its transforms.
_MADE_BY_JAX = frozenset(
    {
        "while", "body", "cond", "branch_0_fun", "branch_1_fun", "closed_call",
        "checkpoint", "eval_jaxpr", "rematted_computation", "shard_map", "pjit", "custom_vjp_call",
        "custom_jvp_call", "custom_vjp_call_jaxpr", "remat", "remat2", "core_call", "scan",
    }
)  # fmt: skip


# What a scan writes at the end of each turn: what the backward pass needs of it, or its results.
_STACKED = re.compile(r"while/body/(?:closed_call/)?(?:jit\(\w+\)/)?dynamic_update_slice$")
SAVED = "saved activations"
STACKED_GRADIENTS = "stacked gradients"
_MADE_BY_COMPILER = re.compile(r"\.\d+$|\)$")  # ends of parts that are no primitives


def model_operation(op_name: str) -> tuple[str, str]:
    """The operation of the model and its pass: `("mlp.up", "backward")`; "" without a name scope.

    Args:
        op_name: the path of name scopes under which JAX traced an operation.
    """
    outer, parts = _combined(op_name)
    if parts:
        found = [model_operation(outer + part) for part in parts]
        names = dict.fromkeys(name for name, _ in found if name)
        phases = {phase for _, phase in found}
        return "+".join(names), BACKWARD if BACKWARD in phases else found[0][1]
    name, phase = scope(op_name)
    return name or _scopes(op_name), phase


def primitive(op_name: str) -> str:
    """What an operation outside all name scopes is; empty if JAX has not traced it.

    >>> primitive("jit(step)/jvp()/dot_general"), primitive("jit(step)/broadcast.3")
    ('dot_general', '')
    """
    _, slash, last = op_name.rpartition("/")
    if not slash or last in _MADE_BY_JAX or _MADE_BY_COMPILER.search(last):
        return ""
    return last


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


def _combined(op_name: str) -> tuple[str, list[str]]:
    """The path before the operations that a compiler has combined, and theirs; else no parts.

    They are written `outer/(transpose(jvp(a))/dot_general:transpose(jvp(b))/dot_general)`.
    """
    start = 0 if op_name.startswith("(") else op_name.find("/(") + 1
    if not start and not op_name.startswith("("):
        return op_name, []
    depth = 0
    parts = [""]
    for letter in op_name[start:]:
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            break
        if letter == ":" and depth == 1:
            parts.append("")
        else:
            parts[-1] += letter
    parts[0] = parts[0].removeprefix("(")
    return op_name[:start], parts if len(parts) > 1 else []


def _scopes(op_name: str) -> str:
    """The name scopes of a path, without its primitive, the last part."""
    path = _PROGRAM.sub("", op_name)
    unwrapped = _TRANSFORM.sub(r"\1", path)
    while unwrapped != path:
        path = unwrapped
        unwrapped = _TRANSFORM.sub(r"\1", path)
    scopes = [part for part in path.split("/")[:-1] if part and part not in _MADE_BY_JAX]
    return "/".join(scopes)
