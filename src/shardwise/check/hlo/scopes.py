"""Planned operation and training pass of an instruction, read from its `op_name`.

The runtime opens a name scope for each operation, with the name from the plan (`attn.q`, `mlp.up`,
`unembed`, ...). Differentiation wraps these names in its transforms:

    jvp(..)/while/body/attn.q/dot_general                              forward
    transpose(jvp(..))/while/body/checkpoint/attn.q/dot_general        backward
    transpose(..)/../rematted_computation/attn.q/dot_general           remat
    optimizer/mul                                                      update

Of other programs the path of name scopes is kept, without what JAX adds to it:

    jit(step)/transpose(jvp(Model))/while/body/layer/mlp/dot_general   Model/layer/mlp
"""

from __future__ import annotations

import re

BLOCKS = ("attn", "mlp", "moe", "mamba")
NAMES = ("embed", "unembed", "loss", "optimizer", "final_norm")

BACKWARD = "backward"
REMAT = "remat"

_PROGRAM = re.compile(r"p?jit\([^()]*\)")
_TRANSFORM = re.compile(r"(?:jvp|transpose|vmap|remat|checkpoint)\(([^()]*)\)")
# Parts of a path that JAX writes for control flow and its transforms.
MADE_BY_JAX = frozenset(
    {
        "while", "body", "cond", "branch_0_fun", "branch_1_fun", "closed_call",
        "checkpoint", "eval_jaxpr", "rematted_computation", "shard_map", "pjit", "custom_vjp_call",
        "custom_jvp_call", "custom_vjp_call_jaxpr", "remat", "remat2", "core_call", "scan",
    }
)  # fmt: skip
_OPERATION = re.compile(rf"(?:{'|'.join(BLOCKS)})\.\w+|{'|'.join(NAMES)}")
_EINSUM = re.compile(r"[A-Za-z.]*(?:,[A-Za-z.]*)+->[A-Za-z.]*")
_COMBINED = re.compile(r"\(([^()]*:[^()]*)\)")


def scope(op_name: str) -> tuple[str, str]:
    """Name of the innermost planned operation, "" if there is none, and the pass.

    If the compiler has combined several operations, their names are joined by +. The pass is
    forward, backward, remat or update; operations that are not differentiated are forward.
    """
    combined = _COMBINED.search(op_name)
    if combined is None:
        return _innermost(op_name), _phase(op_name)
    outer = op_name[: combined.start()]
    parts = combined[1].split(":")
    names = dict.fromkeys(_innermost(part) or _innermost(outer) for part in parts)
    all_remat = all("rematted_computation" in outer + part for part in parts)
    return "+".join(filter(None, names)), _phase(op_name if all_remat else outer)


def model_operation(op_name: str) -> tuple[str, str]:
    """The operation of the model and its pass: `("mlp.up", "backward")`; "" without a name scope.

    Args:
        op_name: the path of name scopes under which JAX traced an operation.
    """
    outer, parts = _combined(op_name)
    if parts:
        operations = [model_operation(outer + part) for part in parts]
        names = dict.fromkeys(name for name, _ in operations if name)
        phases = {phase for _, phase in operations}
        return "+".join(names), BACKWARD if BACKWARD in phases else operations[0][1]
    name, phase = scope(op_name)
    return name or _scopes(op_name), phase


def einsum_text(op_name: str) -> str:
    """The innermost `jnp.einsum` of a path, which JAX keeps as a scope: `BD,DF->BF`; else ""."""
    texts = _EINSUM.findall(op_name)
    return texts[-1] if texts else ""


def _innermost(path: str) -> str:
    for part in reversed(re.split(r"[/()]", path)):
        if _OPERATION.fullmatch(part):
            return part
    return ""


def _phase(path: str) -> str:
    if "rematted_computation" in path:
        return REMAT
    if "transpose(" in path or path.startswith("checkpoint/"):
        return BACKWARD
    if "jvp(" not in path and "optimizer" in re.split(r"[/()]", path):
        return "update"
    return "forward"


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
    """The name scopes of a path, without those of einsums and without its primitive, the last."""
    path = _PROGRAM.sub("", op_name)
    unwrapped = _TRANSFORM.sub(r"\1", path)
    while unwrapped != path:
        path = unwrapped
        unwrapped = _TRANSFORM.sub(r"\1", path)
    scopes = [
        part
        for part in path.split("/")[:-1]
        if part and part not in MADE_BY_JAX and not _EINSUM.fullmatch(part)
    ]
    return "/".join(scopes)
