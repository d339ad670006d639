"""Planned operation and training pass of an instruction, read from its `op_name`.

The runtime opens a name scope for each operation, with the name from the plan (`attn.q`, `mlp.up`,
`unembed`, ...). Differentiation wraps these names in its transforms:

    jvp(..)/while/body/attn.q/dot_general                              forward
    transpose(jvp(..))/while/body/checkpoint/attn.q/dot_general        backward
    transpose(..)/../rematted_computation/attn.q/dot_general           remat
    optimizer/mul                                                      update
"""

from __future__ import annotations

import re

BLOCKS = ("attn", "mlp", "moe", "mamba")
NAMES = ("embed", "unembed", "loss", "optimizer", "final_norm")

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
        return "remat"
    if "transpose(" in path or path.startswith("checkpoint/"):
        return "backward"
    if "jvp(" not in path and "optimizer" in re.split(r"[/()]", path):
        return "update"
    return "forward"
