"""The operation of the model that an operation of the program belongs to, by its name scopes.

Programs of this package have the names of plans (`attn.q`, `mlp.up`). Of others the path of name
scopes is kept, without what JAX adds to it:

    jit(step)/transpose(jvp(Model))/while/body/layer/mlp/dot_general      Model/layer/mlp
"""

from __future__ import annotations

import re

from shardwise.check.hlo.scopes import scope

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


def model_operation(op_name: str) -> tuple[str, str]:
    """The operation of the model and its pass: `("mlp.up", "backward")`; "" without a name scope.

    Args:
        op_name: the path of name scopes under which JAX traced an operation.
    """
    name, phase = scope(op_name)
    return name or _scopes(op_name), phase


def short_name(name: str) -> str:
    """The name of an operation for people: of many that the compiler has combined, the first.

    >>> short_name("attn.q+attn.k+attn.v+mlp.up")
    'attn.q and 3 more'
    """
    first, *others = name.split("+")
    if len(others) < SHOWN:
        return name
    return f"{first} and {len(others)} more"


def _scopes(op_name: str) -> str:
    """The name scopes of a path, without its primitive, the last part."""
    path = _PROGRAM.sub("", op_name)
    unwrapped = _TRANSFORM.sub(r"\1", path)
    while unwrapped != path:
        path = unwrapped
        unwrapped = _TRANSFORM.sub(r"\1", path)
    scopes = [part for part in path.split("/")[:-1] if part and part not in _MADE_BY_JAX]
    return "/".join(scopes)
