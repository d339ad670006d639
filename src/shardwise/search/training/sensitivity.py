"""Sensitivity of a strategy to numbers of its machine, and to batch and sequence length.

One number is multiplied by a factor while the layout stays the same. An elasticity is the relative
change of the step time over that of the number. At a break-even the lower bound becomes bound by
communication or by the chip, another strategy becomes faster, or the memory no longer suffices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.errors import NoStrategy
from shardwise.hardware import System, Torus
from shardwise.hardware.figure import unit_of
from shardwise.hardware.scale import PEAKS
from shardwise.hardware.system import OVERRIDES
from shardwise.search.training.probe import (
    COMPUTE,
    MEMORY,
    TRAFFIC,
    Probe,
    resized,
    scaling,
    with_batch,
    with_seq,
)
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import Candidate
from shardwise.strategy.mesh import Mesh

# Name of a sensitivity -> name of the machine's number, as `hardware.scale.scaled` takes it.
HARDWARE = {
    "peak_flops": PEAKS,
    "hbm_bandwidth": "hbm_bandwidth",
    "hbm_capacity": "hbm",
    "ici_bandwidth": "ici",
    "node_bandwidth": "node",
    "scale_out_bandwidth": "scale_out",
    "dcn_bandwidth": "dcn",
}
# What the numbers of a machine affect; those that are not listed are links and affect the traffic.
AFFECTED = {"peak_flops": COMPUTE, "hbm_bandwidth": COMPUTE, "hbm_capacity": MEMORY}
NUDGE = 1e-3  # relative change of a number to compute an elasticity
OCTAVES = 6  # break-evens are searched between 2^-6 and 2^6 times the number
MAX_RIVALS = 4  # number of other strategies that may become faster
TOLERANCE = 1e-3  # relative error of a break-even

# What binds, whether it fits, or the fastest mesh: a break-even is where one of these changes.
State = str | Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The value of a number, nearest to the present one, at which the state of a strategy changes.

    Args:
        factor: `value` divided by the present value.
        to: the state beyond `value`: "communication" or "chip" for what binds the lower bound,
            "fits" or "does not fit", or the sizes of the faster strategy's mesh.
    """

    factor: float
    value: float
    to: str | dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The best strategy at another batch or sequence length.

    Args:
        value: the batch or sequence length, `factor` times the present one.
        step_s: expected step time, or None if there is no strategy.
        mesh: mesh role -> size, or None if there is no strategy.
        same: whether the mesh is that of the plan.
        problem: why there is no strategy, or None.
    """

    factor: float
    value: float
    step_s: float | None
    mesh: dict[str, int] | None
    same: bool
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Sensitivity to one number of the machine or the job.

    Args:
        value: the present value, in `unit`.
        elasticity: relative change of the expected step time over that of the number; for batch and
            seq between half and twice the value. None if no other value is legal for the layout.
        binds: break-even between "communication" and "chip" as what binds the lower bound. Break-
            evens are searched between 1/64 and 64 times the value, and at powers of 2 of it for
            batch and seq; None if there is no change.
        overtaken: break-even beyond which another strategy is faster.
        fits: break-even between fitting and not fitting in memory.
        searched: the best strategies at half and at twice the batch or sequence length.
    """

    name: str
    unit: str
    value: float
    elasticity: float | None
    binds: BreakEven | None
    overtaken: BreakEven | None
    fits: BreakEven | None
    searched: tuple[Searched, ...] = ()


def hardware_names(system: System) -> tuple[str, ...]:
    """The names in `HARDWARE` that can affect a machine."""
    topology = system.topology
    names = ["peak_flops", "hbm_bandwidth", "hbm_capacity"]
    if isinstance(topology, Torus):
        if topology.n_chips > 1:
            names.append("ici_bandwidth")
    else:
        if system.n_chips > 1 and topology.domain > 1:
            names.append("node_bandwidth")
        if topology.n_nodes > 1:
            names.append("scale_out_bandwidth")
    if system.n_slices > 1:
        names.append("dcn_bandwidth")
    return tuple(names)


def sensitivities(
    case: Case, others: Sequence[Candidate], *, search: bool = True
) -> dict[str, Sensitivity]:
    """Sensitivities to the machine's numbers and to batch and sequence length, by name.

    Args:
        others: other strategies, best first, that may become faster.
        search: whether to search also at half and twice the batch and the sequence length, which
            takes a second or more each.
    """
    fitting = [case.with_candidate(other) for other in others if other.fits]
    rivals = tuple(fitting[:MAX_RIVALS])
    by_name = {}
    for name in hardware_names(case.system):
        affected = AFFECTED.get(name, TRAFFIC)
        by_name[name] = _hardware(Probe(case, rivals, scaling(HARDWARE[name]), affected), name)
    for name, change in (("batch", with_batch), ("seq", with_seq)):
        sensitivity = _workload(Probe(case, rivals, change), name)
        if search:
            sensitivity = replace(sensitivity, searched=tuple(_search(case, name)))
        by_name[name] = sensitivity
    return by_name


def _hardware(probe: Probe, name: str) -> Sensitivity:
    number = HARDWARE[name]
    if number == PEAKS:
        path = f"peak.{probe.case.job.compute}"
    else:
        path = OVERRIDES[number]
    value = probe.case.system.chip.need(path)
    elasticity = _elasticity(probe, (1 - NUDGE, 1 + NUDGE))
    return _sensitivity(probe, name, unit_of(path) or "", value, elasticity)


def _workload(probe: Probe, name: str) -> Sensitivity:
    unit = {"batch": "sequences", "seq": "tokens"}[name]
    elasticity = _elasticity(probe, (0.5, 1.0, 2.0))
    value = float(_size(probe.case, name))
    return _sensitivity(probe, name, unit, value, elasticity, powers_of_two=True)


def _size(case: Case, name: str) -> int:
    return {"batch": case.job.batch, "seq": case.job.seq}[name]


def _elasticity(probe: Probe, factors: Sequence[float]) -> float | None:
    """Slope of log step time over log factor, from the first to the last legal factor, or None."""
    steps = [(factor, step) for factor in factors if (step := probe.step_s(factor))]
    if len(steps) < 2:
        return None
    low, low_step = steps[0]
    high, high_step = steps[-1]
    return math.log(high_step / low_step) / math.log(high / low)


def _sensitivity(
    probe: Probe,
    name: str,
    unit: str,
    value: float,
    elasticity: float | None,
    *,
    powers_of_two: bool = False,
) -> Sensitivity:
    def break_even(state: Callable[[float], State | None]) -> BreakEven | None:
        change = nearest(state, powers_of_two=powers_of_two)
        if change is None:
            return None
        factor, new_state = change
        if isinstance(new_state, Mesh):
            return BreakEven(factor=factor, value=factor * value, to=new_state.sizes)
        return BreakEven(factor=factor, value=factor * value, to=new_state)

    return Sensitivity(
        name=name,
        unit=unit,
        value=value,
        elasticity=elasticity,
        binds=break_even(probe.binds),
        overtaken=break_even(probe.fastest),
        fits=break_even(probe.fits),
    )


def nearest(
    state: Callable[[float], State | None], *, powers_of_two: bool = False
) -> tuple[float, State] | None:
    """The factor nearest to 1 at which a state changes, and the new state; None without a change.

    The search goes up and down from 1 by factors of 2 and bisects the first octave in which the
    state changes. It does not notice two changes within one octave.

    Args:
        state: function from a factor to the state; None ends the search in that direction.
        powers_of_two: whether to try only powers of two, without bisection.
    """
    present = state(1.0)
    open_sides = {1, -1}
    for octave in range(1, OCTAVES + 1):
        changes: list[tuple[float, State]] = []
        for side in sorted(open_sides):
            inner = 2.0 ** (side * (octave - 1))
            outer = 2.0 ** (side * octave)
            outer_state = state(outer)
            if outer_state is None:
                open_sides.discard(side)
            elif outer_state != present and powers_of_two:
                changes.append((outer, outer_state))
            elif outer_state != present:
                changes.append(_bisect(state, present, inner, outer))
        if changes:
            return min(changes, key=lambda change: abs(math.log(change[0])))
    return None


def _bisect(
    state: Callable[[float], State | None], present: State | None, inner: float, outer: float
) -> tuple[float, State]:
    """(factor, state) where the state first differs from `present` between `inner` and `outer`."""
    while abs(math.log(outer / inner)) > TOLERANCE:
        middle = math.sqrt(inner * outer)
        if state(middle) == present:
            inner = middle
        else:
            outer = middle
    return outer, state(outer) or ""


def _search(case: Case, name: str) -> Iterator[Searched]:
    """The best strategies at half and twice the batch or sequence length."""
    for factor in (0.5, 2.0):
        value = factor * _size(case, name)
        best, problem = _search_at(case, name, value)
        if best is None:
            yield Searched(
                factor=factor, value=value, step_s=None, mesh=None, same=False, problem=problem
            )
            continue
        yield Searched(
            factor=factor,
            value=value,
            step_s=float(best.time.step_s),
            mesh=best.mesh.sizes,
            same=best.mesh == case.layout.mesh,
            problem=None,
        )


def _search_at(case: Case, name: str, value: float) -> tuple[Candidate | None, str | None]:
    """(best strategy that fits, None), or (None, the reason why no strategy fits)."""
    changed = None
    if value == int(value):
        changed = resized(case, name, int(value))
    if changed is None:
        return None, f"{value:g} is not a whole number, or too large"
    try:
        best = changed.rank(keep=1).candidates[0]
    except NoStrategy as error:
        return None, error.problems[0]
    if not best.fits:
        return None, "nothing fits"
    return best, None
