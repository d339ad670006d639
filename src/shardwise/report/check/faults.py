"""Sentences about the faults of a user's program, and what may help against each."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shardwise import units
from shardwise.check.source_line import SourceLine
from shardwise.check.user.fault import Fault


def sentence(fault: Fault, n_devices: int, device: str = "chip") -> str:
    """What is wrong, where, and how much of the chip it takes.

    Args:
        n_devices: devices of the whole mesh.
        device: what a device is called: `chip`, or `device` where a chip has several.
    """
    size = units.show_gib(fault.bytes)
    share = f"{fault.share:.0%}"
    devices = f"all {fault.n_chips} {device}s"
    if fault.n_chips < n_devices:
        devices = f"the {fault.n_chips} {device}s along {' x '.join(fault.axes)}"
    where = place(fault.scope, fault.sources)
    location = f" in {where}" if where else ""
    match fault.kind:
        case "whole arguments":
            return f"Arguments are whole on {devices}: {size} of {_arguments(fault)}."
        case "whole batch":
            return (
                f"The batch is whole on {devices}: no axis splits {_arguments(fault)}, and sums of "
                f"activations over all axes are {share} of the traffic."
            )
        case "whole activation":
            return (
                f"An activation is whole on {devices}: {fault.subject} ({size}){location}"
                f"{_cause(fault)}."
            )
        case "gathered whole":
            return (
                f"An activation is gathered whole on {devices}: {fault.subject} ({size}){location}"
                f"{_cause(fault)}."
            )
        case "repeated work":
            if fault.constraint:
                return (
                    f"The constraint at {place('', fault.constraint)} keeps an array whole on "
                    f"{devices}, which all compute it{location}: {share} of the FLOPs too much"
                    f"{_cost(fault)}."
                )
            return f"The same products are computed on {devices}: {share} of the FLOPs{location}."
        case "reshard in a loop":
            return (
                f"A reshard inside a loop: {fault.subject}{location}, {fault.n_runs} times, "
                f"{share} of the traffic{_cost(fault)}."
            )
        case "fp32 product":
            return f"An fp32 product of 16-bit inputs{location}: {share} of the FLOPs."
        case "copied arguments":
            return f"Copied: {size} of {_arguments(fault)}, {share} of the HBM traffic."
    return f"Not donated: {size} of {_arguments(fault)} may be reused in place."


def remedy(fault: Fault) -> str:
    """What may help."""
    match fault.kind:
        case "whole arguments":
            return f"shard {_arguments(fault)} over {' or '.join(fault.axes)}"
        case "whole batch":
            axes = " or ".join(fault.axes)
            return f"shard {_arguments(fault)} over {axes}, and what is computed from it"
        case "whole activation" | "gathered whole" | "repeated work" if fault.constraint:
            return f"split it over {' or '.join(fault.axes)} at {fault.constraint[0]}"
        case "whole activation" | "gathered whole":
            return "keep it split there, with jax.lax.with_sharding_constraint"
        case "repeated work":
            return f"split one operand over {' or '.join(fault.axes)}"
        case "reshard in a loop":
            return "give the array the same sharding before and after this line"
        case "fp32 product":
            return "cast the result, or set preferred_element_type=jnp.float32"
        case "copied arguments":
            return (
                "carry it through the loop and update it in place, not as input and output of a "
                "scan; order its dims as the products read them"
            )
    option = "donate_argnums" if isinstance(fault.arguments[0], int) else "donate_argnames"
    return f"jax.jit(..., {option}={json.dumps(fault.arguments)})"


def _cause(fault: Fault) -> str:
    return f", by the constraint at {place('', fault.constraint)}" if fault.constraint else ""


def _cost(fault: Fault) -> str:
    """Needless traffic and time of one run."""
    gathered = ""
    if fault.kind == "repeated work" and fault.bytes:
        gathered = f" and {units.show_bytes(fault.bytes)} gathered for it"
    return f"{gathered}, {units.show_seconds(fault.seconds)} a run" if fault.seconds else gathered


def _arguments(fault: Fault) -> str:
    """The arguments in words: `w, mu and argument 2`."""
    names = []
    for name in fault.arguments:
        names.append(f"argument {name}" if isinstance(name, int) else name)
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def place(scope: str, sources: Sequence[SourceLine]) -> str:
    """Scope and source line of an operation: `mlp (train.py:31)`."""
    lines = ", ".join(map(str, sources))
    return f"{scope} ({lines})" if scope and lines else scope or lines
