"""What to look at first in an account of a step: its largest operations that are no products."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.profile.categories import COMMUNICATION, COPY, ELEMENTWISE, MATMUL, WAIT
from shardwise.profile.names import SAVED
from shardwise.profile.result import OperationTime, Profile

LEAST = 0.1  # share of a step from which an operation has a hint
ALL_GATHER = "all_gather"
COPIES = "copies, of arrays that change their dtype or layout, or are updated outside their memory"
SAVED_COPIES = "copies into the stacks that the backward pass reads; remat saves fewer arrays"
GATHERED = (
    "gathered because a product or a sharding constraint needs the whole array. Weights that every "
    "pass gathers are better sharded over the dim that is kept"
)
COLLECTIVE = "which shardwise compare PLAN TRACE puts beside the plan"
WAITING = "waiting for the slowest device"
SHARED_CORES = "waiting for each other: devices of one CPU share its cores"
FEW_TOKENS = (
    "more than all products. If it updates the weights, a step has few tokens for so many weights"
)


def hints(profile: Profile) -> Iterator[str]:
    """A sentence on each large operation, what takes longest first.

    >>> from shardwise.profile.categories import COPY
    >>> copy = OperationTime(
    ...     name="cache", phase="", category=COPY, count=1, seconds=0.2, share=0.9
    ... )
    >>> _hint(copy, products_s=0.0, on_cpu=True).partition(",")[0]
    'cache: 200 ms of copies'
    """
    undonated = profile.undonated_bytes or 0
    if profile.memory and undonated > LEAST * profile.memory.arguments:
        yield (
            f"{units.show_bytes(undonated)} of arguments are returned updated, in other memory: "
            "donate them (donate_argnums of jax.jit)"
        )
    products_s = sum(part.seconds for part in profile.categories if part.category == MATMUL)
    waiting = {
        (part.name, part.phase): part.share for part in profile.operations if part.category == WAIT
    }
    for part in sorted(profile.operations, key=lambda part: -part.seconds):
        share = part.share
        if part.category == COMMUNICATION:  # devices wait for each other in it
            share += waiting.get((part.name, part.phase), 0.0)
        if share >= LEAST:
            hint = _hint(part, products_s=products_s, on_cpu=profile.kind == "CPU")
            if hint:
                yield hint


def _hint(part: OperationTime, *, products_s: float, on_cpu: bool) -> str:
    """The sentence on an operation; empty if there is none."""
    text = f"{part.name}: {units.show_seconds(part.seconds)}"
    if part.category == COPY:
        return f"{text} of {SAVED_COPIES if part.name == SAVED else COPIES}"
    if part.category == COMMUNICATION and part.collectives:
        kind = max(part.collectives, key=lambda kind: part.collectives[kind])
        reason = GATHERED if kind == ALL_GATHER else COLLECTIVE
        return f"{text} of {DISPLAY_NAMES.get(kind, kind)}, {reason}"
    if part.category == WAIT:
        return f"{text} of {SHARED_CORES if on_cpu else WAITING}"
    if part.category == ELEMENTWISE and part.seconds > products_s:
        return f"{text} of elementwise work, {FEW_TOKENS}"
    return ""
