"""Sensitivity of a strategy to numbers of its machine, and to batch and sequence length.

One number is multiplied by a factor while the layout stays the same. An elasticity is the relative
change of the step time over that of the number. At a break-even the lower bound becomes bound by
communication or by the chip, another strategy becomes faster, or the memory no longer suffices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.errors import BadInput, NoStrategy
from shardwise.estimate.calibration import PEAK
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import IDEAL, FusionProfile
from shardwise.estimate.training.step import StepTime, step_time
from shardwise.hardware import System, Torus
from shardwise.hardware.chip import get
from shardwise.hardware.figure import unit_of
from shardwise.hardware.scale import PEAKS, scaled
from shardwise.hardware.system import OVERRIDES
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import Candidate, memory_of
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.schedules import find

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
COMPUTE = frozenset({"compute"})
TRAFFIC = frozenset({"traffic"})
MEMORY = frozenset({"memory"})
AFFECTED = {"peak_flops": COMPUTE, "hbm_bandwidth": COMPUTE, "hbm_capacity": MEMORY}
NUDGE = 1e-3  # relative change of a number to compute an elasticity
OCTAVES = 6  # break-evens are searched between 2^-6 and 2^6 times the number
MAX_RIVALS = 4  # number of other strategies that may become faster
TOLERANCE = 1e-3  # relative error of a break-even; faster by less counts as equally fast

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
        by_name[name] = _hardware(_Probe(case, rivals, _scaling(HARDWARE[name]), affected), name)
    for name, change in (("batch", with_batch), ("seq", with_seq)):
        sensitivity = _workload(_Probe(case, rivals, change), name)
        if search:
            sensitivity = replace(sensitivity, searched=tuple(_search(case, name)))
        by_name[name] = sensitivity
    return by_name


# Returns the case with one number multiplied by a factor; None if the layout is not legal then.
Change = Callable[[Case, float], Case | None]


def _scaling(name: str) -> Change:
    """The change that multiplies a number of the machine."""
    return lambda case, factor: case.with_system(scaled(case.system, {name: factor}))


def with_batch(case: Case, factor: float) -> Case | None:
    """The case with `factor` times the microbatches, or times their size; None if not legal."""
    layout = case.layout
    batch = factor * case.job.batch
    n_microbatches = factor * layout.n_microbatches
    micro_batch = factor * layout.micro_batch
    if n_microbatches >= 1 and n_microbatches == int(n_microbatches):
        layout = replace(layout, n_microbatches=int(n_microbatches))
    elif micro_batch >= 1 and micro_batch == int(micro_batch):
        layout = replace(layout, micro_batch=int(micro_batch))
    else:
        return None
    if layout.is_pipelined:
        schedule = find(layout.schedule)
        chunks = schedule.chunks or layout.virtual
        if not schedule.legal(layout.mesh.pipe, layout.n_microbatches, chunks):
            return None
    return _resized(replace(case, layout=layout), "batch", int(batch))


def with_seq(case: Case, factor: float) -> Case | None:
    """The case with `factor` times the sequence length; None if its layout is not legal then."""
    seq = factor * case.job.seq
    mesh = case.layout.mesh
    if seq % (mesh.context * mesh.tensor):
        return None
    return _resized(case, "seq", int(seq))


def _resized(case: Case, name: str, size: int) -> Case | None:
    """The case with another batch or sequence length; None if the size is out of range."""
    sizes = {"batch": case.job.batch, "seq": case.job.seq, name: size}
    try:
        job = replace(case.job, batch=sizes["batch"], seq=sizes["seq"])
    except BadInput:
        return None
    return replace(case, job=job)


@dataclass
class _Probe:
    """Evaluates a case and its rivals with one number multiplied by a factor.

    Only what is asked for, and what the number affects, is evaluated, and each but once.

    Args:
        change: multiplies the number.
        affected: what the number affects.
        cache: results by kind, case and factor.
    """

    case: Case
    rivals: tuple[Case, ...]
    change: Change
    affected: frozenset[str] = COMPUTE | TRAFFIC | MEMORY
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def _step(self, case: Case, factor: float) -> LayoutStep | None:
        """The step of the case at a factor; None if its layout is not legal there."""
        key = ("step", case.layout, factor)
        if key not in self.cache:
            changed = self.change(case, factor)
            self.cache[key] = changed.step() if changed else None
        return self.cache[key]  # type: ignore[no-any-return]

    def _time(self, case: Case, factor: float, *, peak: bool = False) -> StepTime | None:
        """Step time of the case, expected or at peak rates; None if it is not legal."""
        if self.affected == MEMORY:
            factor = 1.0
        step = self._step(case, factor)
        if step is None:
            return None
        key = ("time", case.layout, factor, peak)
        if key not in self.cache:
            rates = (PEAK, IDEAL) if peak else (case.cal, FusionProfile())
            same_compute = None
            if self.affected == TRAFFIC:
                same_compute = self.cache.get(("microbatch", case.layout, peak))
            microbatch = step.microbatch(*rates, same_compute)
            self.cache["microbatch", case.layout, peak] = microbatch
            self.cache[key] = step_time(step.priced(*rates), microbatch)
        return self.cache[key]  # type: ignore[no-any-return]

    def _memory_suffices(self, case: Case, factor: float) -> bool:
        """Whether the case, which is legal at the factor, fits in memory."""
        if "memory" not in self.affected:
            factor = 1.0
        key = ("memory", case.layout, factor)
        if key not in self.cache:
            step = self._step(case, factor)
            self.cache[key] = step is not None and bool(memory_of(step).fits)
        return self.cache[key]  # type: ignore[no-any-return]

    def step_s(self, factor: float) -> float | None:
        """Expected step time of the case; None if it is not legal at this factor."""
        time = self._time(self.case, factor)
        return None if time is None else float(time.step_s)

    def binds(self, factor: float) -> str | None:
        """What binds the lower bound of the step time: "communication" or "chip"."""
        roofline = self._time(self.case, factor, peak=True)
        if roofline is None:
            return None
        if roofline.lower_s > roofline.on_chip_s:
            return "communication"
        return "chip"

    def fits(self, factor: float) -> str | None:
        """Whether the memory suffices: "fits" or "does not fit"."""
        if self._step(self.case, factor) is None:
            return None
        if self._memory_suffices(self.case, factor):
            return "fits"
        return "does not fit"

    def fastest(self, factor: float) -> Mesh | None:
        """Mesh of the fastest strategy among the case and the rivals that fit in memory."""
        time = self._time(self.case, factor)
        if time is None:
            return None
        best = self.case
        best_s = time.step_s
        for rival in self.rivals:
            time = self._time(rival, factor)
            if time is None or not time.step_s < best_s * (1 - TOLERANCE):
                continue
            if self._memory_suffices(rival, factor):
                best = rival
                best_s = time.step_s
        return best.layout.mesh


def _hardware(probe: _Probe, name: str) -> Sensitivity:
    number = HARDWARE[name]
    if number == PEAKS:
        path = f"peak.{probe.case.job.compute}"
    else:
        path = OVERRIDES[number]
    value: Any = get(probe.case.system.chip, path)
    elasticity = _elasticity(probe, (1 - NUDGE, 1 + NUDGE))
    return _sensitivity(probe, name, unit_of(path) or "", float(value), elasticity)


def _workload(probe: _Probe, name: str) -> Sensitivity:
    unit = {"batch": "sequences", "seq": "tokens"}[name]
    elasticity = _elasticity(probe, (0.5, 1.0, 2.0))
    value = float(_size(probe.case, name))
    return _sensitivity(probe, name, unit, value, elasticity, powers_of_two=True)


def _size(case: Case, name: str) -> int:
    return {"batch": case.job.batch, "seq": case.job.seq}[name]


def _elasticity(probe: _Probe, factors: Sequence[float]) -> float | None:
    """Slope of log step time over log factor, from the first to the last legal factor, or None."""
    steps = [(factor, step) for factor in factors if (step := probe.step_s(factor))]
    if len(steps) < 2:
        return None
    low, low_step = steps[0]
    high, high_step = steps[-1]
    return math.log(high_step / low_step) / math.log(high / low)


def _sensitivity(
    probe: _Probe,
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
    resized = None
    if value == int(value):
        resized = _resized(case, name, int(value))
    if resized is None:
        return None, f"{value:g} is not a whole number, or too large"
    try:
        best = resized.rank(keep=1).candidates[0]
    except NoStrategy as error:
        return None, error.problems[0]
    if not best.fits:
        return None, "nothing fits"
    return best, None


def order(sensitivities: Mapping[str, Sensitivity]) -> list[Sensitivity]:
    """Sort sensitivities by the size of their elasticity, largest first."""
    return sorted(sensitivities.values(), key=lambda item: -abs(item.elasticity or 0.0))
