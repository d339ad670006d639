"""What to look at first in an account of a step: its largest operations that are no products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.check.hlo.scopes import BACKWARD, REMAT
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.profile.categories import COMMUNICATION, COPY, MATMUL, WAIT
from shardwise.profile.names import SAVED
from shardwise.profile.result import OperationTime, Profile
from shardwise.report.words import percent

LEAST = 0.1  # share of a step from which an operation has a hint
LEAST_COLLECTIVE = 0.05  # the same of a collective, whose work on the whole array costs more
ALL_GATHER = "all_gather"
COPIES = "copies, of arrays that change their dtype or layout, or are updated outside their memory"
SAVED_COPIES = "copies into the stacks that the backward pass reads; remat saves fewer arrays"
GATHERED = (
    ", gathered because a product or a sharding constraint needs the whole array. Weights that "
    "every pass gathers are better sharded over the dim that is kept"
)
COLLECTIVE = ", which shardwise compare PLAN TRACE puts beside the plan"
WAITING = "waiting for the slowest device"
SHARED_CORES = "waiting for each other: devices of one CPU share its cores"
N_NAMES = 2  # operations that are named, the largest
LEAST_CAST = 0.25  # share of the FLOPs of products; CPUs forget the casts of the forward pass
# For an element that a step updates: 6 for each token, with Adam a third of that.
FEW_FLOPS = 200
MOSTLY = 2.0  # times its own seconds that devices wait in a collective, whose hint is the waiting
VERY_FEW_FLOPS = 100  # where products mostly read weights, however long they take
# Of the rate of other products, below which an odd dim costs. On CPUs it costs a part of a vector
# alone, and products of other shapes differ by more than that.
SLOWER = {"CPU": 0.6, "GPU": 0.9, "TPU": 0.9}


def hints(profile: Profile) -> Iterator[str]:
    """A sentence on each large operation, what takes longest first.

    >>> from shardwise.profile.categories import COPY
    >>> copy = OperationTime(
    ...     name="cache", phase="", category=COPY, count=1, seconds=0.2, share=0.9
    ... )
    >>> _hint(copy).partition(",")[0]
    'cache: 200 ms of copies'
    """
    yield from _cast_products(profile)
    yield from _odd_dims(profile)
    yield from few_tokens(profile)
    yield from _operations(profile)
    yield from _remat(profile)
    undonated = profile.undonated_bytes or 0
    if profile.memory and undonated > LEAST * profile.memory.arguments:
        yield (
            f"memory: {units.show_bytes(undonated)} of arguments have the shapes of results, in "
            "other memory. Donate those that are not used again (donate_argnums of jax.jit)"
        )


def _operations(profile: Profile) -> Iterator[str]:
    """Copies, collectives and waiting that are large: gathers first, then what takes longest."""
    waiting = {
        (part.name, part.phase): part.share for part in profile.operations if part.category == WAIT
    }

    def place(part: OperationTime) -> tuple[bool, float]:
        return ALL_GATHER not in part.collectives, -part.seconds

    for part in sorted(profile.operations, key=place):
        share = part.share
        if part.category == COMMUNICATION:  # devices wait for each other in it
            share += waiting.get((part.name, part.phase), 0.0)
        least = LEAST_COLLECTIVE if part.category == COMMUNICATION else LEAST
        if share >= least:
            waiting_s = profile.step_s * (share - part.share)
            hint = _hint(part, waiting_s, bool(profile.plan), on_cpu=profile.kind == "CPU")
            if hint:
                yield hint


def _cast_products(profile: Profile) -> Iterator[str]:
    """Products in fp32 of arrays in 16 bits, if they are many."""
    flops = sum(part.flops or 0.0 for part in profile.operations)
    cast = [part for part in profile.operations if part.upcast_flops]
    cast_flops = sum(part.upcast_flops for part in cast)
    if cast_flops >= LEAST_CAST * flops > 0:
        yield (
            f"{_largest(cast)}: products in fp32 of arrays that are cast from 16 bits, at least "
            f"{percent(cast_flops / flops)} of the FLOPs. Multiply them in their own dtype "
            "(preferred_element_type=jnp.float32 accumulates in fp32), and cast results to it, "
            "so that those of gradients are in it too"
        )


def _largest(parts: Sequence[OperationTime]) -> str:
    """Names of the largest of some operations, which come first."""
    return ", ".join(dict.fromkeys(part.name for part in parts[:N_NAMES]))


def few_tokens(profile: Profile) -> Iterator[str]:
    """A step that updates more than it multiplies."""
    products = [part for part in profile.operations if part.category == MATMUL]
    is_training = any(part.phase == BACKWARD for part in products)
    flops = sum(part.flops or 0.0 for part in products)
    seconds = sum(part.seconds for part in products)
    if not is_training or not profile.updated_elements:
        return
    per_element = flops / profile.updated_elements
    if per_element < (VERY_FEW_FLOPS if seconds > profile.compute_s / 2 else FEW_FLOPS):
        yield (
            f"the tokens of a step: its products do only {per_element:,.0f} FLOPs for each element "
            "of weights and optimizer that it updates. A larger batch does more for one update"
        )


def _odd_dims(profile: Profile) -> Iterator[str]:
    """Products with a dim that does not fill the vectors of the device."""
    products = [part for part in profile.operations if part.category == MATMUL]
    parts = [part for part in products if part.odd_dim]
    seconds = sum(part.seconds for part in parts)
    rate, other = _rate(parts), _rate([part for part in products if not part.odd_dim])
    if seconds >= LEAST * profile.step_s and (not other or rate < SLOWER[profile.kind] * other):
        dim = max(part.odd_dim for part in parts)
        share = f", at {percent(rate / other)} of the FLOP/s of the others" if other else ""
        yield (
            f"{_largest(parts)}: {units.show_seconds(seconds)} of products with a dim of {dim:,}, "
            f"which does not fill the vectors of the device{share}: pad it"
        )


def _rate(products: Sequence[OperationTime]) -> float:
    """FLOP/s of products together; 0 if they are not known."""
    seconds = sum(part.seconds for part in products)
    return sum(part.flops or 0.0 for part in products) / seconds if seconds else 0.0


def _remat(profile: Profile) -> Iterator[str]:
    """Work that a step does again, where no plan says that it has to."""
    parts = [part for part in profile.operations if part.phase == REMAT]
    seconds = sum(part.seconds for part in parts)
    if profile.plan or not profile.memory or seconds < LEAST * profile.step_s:
        return
    yield (
        f"remat: {units.show_seconds(seconds)} computes arrays again. The program takes "
        f"{units.show_bytes(profile.memory.bytes)} of a device; where there is more, save more "
        "arrays (policy of jax.checkpoint)"
    )


def _hint(
    part: OperationTime, waiting_s: float = 0.0, has_plan: bool = False, *, on_cpu: bool = False
) -> str:
    """The sentence on an operation; empty if there is none.

    Args:
        waiting_s: of a collective, in which devices wait for each other before it.
    """
    text = f"{part.name}: {units.show_seconds(part.seconds)}"
    if part.category == COPY:
        return f"{text} of {SAVED_COPIES if part.name == SAVED else COPIES}"
    if part.category == COMMUNICATION and part.collectives:
        kind = max(part.collectives, key=lambda kind: part.collectives[kind])
        reason = GATHERED if kind == ALL_GATHER else COLLECTIVE * has_plan
        name = DISPLAY_NAMES.get(kind, kind)
        if waiting_s > MOSTLY * part.seconds:
            return f"{part.name}: {units.show_seconds(waiting_s)} of waiting in its {name}{reason}"
        return f"{text} of {name}{reason}"
    if part.category == WAIT:
        return f"{text} of {SHARED_CORES if on_cpu else WAITING}"
    return ""
