"""Which planned operation an instruction belongs to, and in which pass of training.

The runtime writes each operation under the name that the plan has for it (`attn.q`, `mlp.up`,
`unembed`, ...), and differentiation leaves its marks around those names:

    jvp(..)/while/body/attn.q/dot_general                              forward
    transpose(jvp(..))/while/body/checkpoint/attn.q/dot_general        backward
    transpose(..)/../rematted_computation/attn.q/dot_general           remat
    optimizer/mul                                                      update
"""

from __future__ import annotations

import re

BLOCKS = ("attn", "mlp", "moe", "mamba")
NAMES = ("embed", "unembed", "loss", "optimizer", "final_norm")

_KNOWN = re.compile(rf"(?:{'|'.join(BLOCKS)})\.\w+|{'|'.join(NAMES)}")
_COMBINED = re.compile(r"\(([^()]*:[^()]*)\)")


def scope(op_name: str) -> tuple[str, str]:
    """Name of the planned operation, "" when there is none, and the pass.

    The innermost known name counts. Where the compiler has combined operations their names are
    joined by +. The pass is forward, backward, remat or update; what no derivative has touched is
    forward.
    """
    found = _COMBINED.search(op_name)
    if found is None:
        return _innermost(op_name), _phase(op_name)
    outer = op_name[: found.start()]
    names = dict.fromkeys(_innermost(part) or _innermost(outer) for part in found[1].split(":"))
    remat = all("rematted_computation" in outer + part for part in found[1].split(":"))
    return "+".join(filter(None, names)), _phase(op_name) if remat else _phase(outer)


def _innermost(path: str) -> str:
    known = [part for part in re.split(r"[/()]", path) if _KNOWN.fullmatch(part)]
    return known[-1] if known else ""


def _phase(path: str) -> str:
    if "rematted_computation" in path:
        return "remat"
    if "transpose(" in path or path.startswith("checkpoint/"):
        return "backward"
    if "jvp(" not in path and "optimizer" in re.split(r"[/()]", path):
        return "update"
    return "forward"
