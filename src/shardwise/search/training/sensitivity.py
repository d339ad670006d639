"""What a strategy hangs on: how its step answers to each number, and where the answer changes.

The layout stays and one number is multiplied. What is asked then: does another side bind the lower
bound, is another strategy of the ranking faster, does the strategy still fit?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwise.errors import BadInput, NoStrategy
from shardwise.hardware import System, Torus
from shardwise.hardware.chip import get
from shardwise.hardware.figure import unit_of
from shardwise.hardware.scale import PEAKS, scaled
from shardwise.hardware.system import OVERRIDES
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import Candidate
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.schedules import find

# Name of a sensitivity -> what `scaled` multiplies.
HARDWARE = {
    "peak_flops": PEAKS,
    "hbm_bandwidth": "hbm_bandwidth",
    "hbm_capacity": "hbm",
    "ici_bandwidth": "ici",
    "node_bandwidth": "node",
    "scale_out_bandwidth": "scale_out",
    "dcn_bandwidth": "dcn",
}
WORK = ("batch", "seq")

NUDGE = 1e-3  # relative change for the slope: small against any change of what binds
OCTAVES = 6  # break-evens are looked for between 1/64 and 64 times the number
RIVALS = 4  # other strategies that may become faster
CLOSE = 1e-3  # relative, of a break-even

State = str | Mesh  # what holds at a factor


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where something changes, on the way from the present number.

    Args:
        factor, value: of the number.
        to: what it is beyond it: "communication" or "chip" for what binds, "fits" or "does not
            fit", or the mesh of the faster strategy.
    """

    factor: float
    value: float
    to: str | dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The best strategy at another size of the work.

    Args:
        same: it has the mesh of the plan.
        problem: why there is none.
    """

    factor: float
    value: float
    step_s: float | None
    mesh: dict[str, int] | None
    same: bool
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One number of the machine or the work.

    Args:
        value: what it is, in `unit`.
        elasticity: relative change of the expected step over that of the number, at one layout;
            over factors of 2 for batch and seq. None where the layout exists at this size only.
        binds, overtaken, fits: the nearest break-evens between 1/64 and 64 times the number (powers
            of 2 for batch and seq): another side binds the lower bound, another strategy is faster,
            the memory is enough or not. None where there is none.
        searched: batch and seq: the best strategies at half and twice the size.
    """

    name: str
    unit: str
    value: float
    elasticity: float | None
    binds: BreakEven | None
    overtaken: BreakEven | None
    fits: BreakEven | None
    searched: tuple[Searched, ...] = ()


def used(system: System) -> tuple[str, ...]:
    """The numbers of `HARDWARE` that a machine has and uses."""
    topology, chips = system.topology, system.n_chips
    if isinstance(topology, Torus):
        links = ["ici_bandwidth"] if topology.n_chips > 1 else []
    else:
        links = ["node_bandwidth"] if chips > 1 and topology.domain > 1 else []
        links += ["scale_out_bandwidth"] if topology.n_nodes > 1 else []
    links += ["dcn_bandwidth"] if system.n_slices > 1 else []
    return ("peak_flops", "hbm_bandwidth", "hbm_capacity", *links)


def sensitivities(
    case: Case, others: Sequence[Candidate], *, search: bool = True
) -> dict[str, Sensitivity]:
    """Every number that the machine uses and the work has, by name.

    Args:
        case: the plan.
        others: strategies that could be faster, best first.
        search: also search at half and twice the batch and the length: a second or more each.
    """
    rivals = tuple(case.of(other) for other in others if other.fits)[:RIVALS]
    found = {
        name: _hardware(_Probe(case, rivals, _scaling(HARDWARE[name])), name)
        for name in used(case.system)
    }
    for name, change in (("batch", with_batch), ("seq", with_seq)):
        probe = _Probe(case, rivals, change)
        found[name] = _work(probe, name, tuple(_searched(case, name)) if search else ())
    return found


Change = Callable[[Case, float], Case | None]


def _scaling(name: str) -> Change:
    return lambda case, factor: case.on(scaled(case.system, {name: factor}))


def with_batch(case: Case, factor: float) -> Case | None:
    """The layout with more or fewer microbatches, or larger ones where these are not whole."""
    layout, batch = case.layout, factor * case.job.batch
    many, large = factor * layout.n_microbatches, factor * layout.micro_batch
    if many >= 1 and many == int(many):
        layout = replace(layout, n_microbatches=int(many))
    elif large >= 1 and large == int(large):
        layout = replace(layout, micro_batch=int(large))
    else:
        return None
    if layout.is_pipelined:
        schedule = find(layout.schedule)
        chunks = schedule.chunks or layout.virtual
        if not schedule.legal(layout.mesh.pipe, layout.n_microbatches, chunks):
            return None
    return _resized(replace(case, layout=layout), "batch", int(batch))


def with_seq(case: Case, factor: float) -> Case | None:
    """The layout with longer or shorter sequences."""
    seq, mesh = factor * case.job.seq, case.layout.mesh
    if seq % (mesh.context * mesh.tensor):
        return None
    return _resized(case, "seq", int(seq))


def _resized(case: Case, name: str, size: int) -> Case | None:
    """The case with another batch or length; None beyond what any batch is."""
    job = case.job
    try:
        job = replace(job, batch=size) if name == "batch" else replace(job, seq=size)
    except BadInput:
        return None
    return replace(case, job=job)


@dataclass
class _Probe:
    """A case and its rivals at multiples of one number, each evaluated once."""

    case: Case
    rivals: tuple[Case, ...]
    change: Change
    known: dict[tuple[int, float], Candidate | None] = field(default_factory=dict)

    def at(self, factor: float, rival: int = -1) -> Candidate | None:
        """The case, or a rival by its index; None where it cannot be."""
        key = (rival, factor)
        if key not in self.known:
            case = self.case if rival < 0 else self.rivals[rival]
            changed = self.change(case, factor)
            self.known[key] = changed.evaluate() if changed else None
        return self.known[key]

    def binds(self, factor: float) -> str | None:
        """What the lower bound is made of."""
        found = self.at(factor)
        if found is None:
            return None
        roofline = found.roofline
        return "communication" if roofline.lower_s > roofline.on_chip_s else "chip"

    def fits(self, factor: float) -> str | None:
        """Whether the memory is enough."""
        found = self.at(factor)
        if found is None:
            return None
        return "fits" if found.fits else "does not fit"

    def fastest(self, factor: float) -> Mesh | None:
        """The mesh of the fastest rival that fits and is faster than the case, or its own."""
        mine = self.at(factor)
        if mine is None:
            return None
        best = mine
        for i in range(len(self.rivals)):
            other = self.at(factor, i)
            if other and other.fits and other.time.step_s < best.time.step_s * (1 - CLOSE):
                best = other
        return best.mesh


def _hardware(probe: _Probe, name: str) -> Sensitivity:
    chip, number = probe.case.system.chip, HARDWARE[name]
    path = f"peak.{probe.case.job.compute}" if number == PEAKS else OVERRIDES[number]
    value = get(chip, path)
    low, high = _step(probe, 1 - NUDGE), _step(probe, 1 + NUDGE)
    slope = math.log(high / low) / math.log((1 + NUDGE) / (1 - NUDGE)) if low and high else None
    return _told(probe, name, unit_of(path) or "", float(value), slope)  # type: ignore[arg-type]


def _work(probe: _Probe, name: str, searched: tuple[Searched, ...]) -> Sensitivity:
    job = probe.case.job
    value, unit = (job.batch, "sequences") if name == "batch" else (job.seq, "tokens")
    ends = [(factor, _step(probe, factor)) for factor in (0.5, 1.0, 2.0)]
    there = [(factor, step) for factor, step in ends if step]
    slope = None
    if len(there) > 1:
        (low, before), (high, after) = there[0], there[-1]
        slope = math.log(after / before) / math.log(high / low)
    told = _told(probe, name, unit, float(value), slope, whole=True)
    return replace(told, searched=searched)


def _step(probe: _Probe, factor: float) -> float | None:
    found = probe.at(factor)
    return float(found.time.step_s) if found else None


def _told(
    probe: _Probe, name: str, unit: str, value: float, slope: float | None, *, whole: bool = False
) -> Sensitivity:
    def crossing(state: Callable[[float], State | None]) -> BreakEven | None:
        found = nearest(state, whole=whole)
        if found is None:
            return None
        factor, there = found
        to = there.sizes if isinstance(there, Mesh) else there
        return BreakEven(factor=factor, value=factor * value, to=to)

    return Sensitivity(
        name=name,
        unit=unit,
        value=value,
        elasticity=slope,
        binds=crossing(probe.binds),
        overtaken=crossing(probe.fastest),
        fits=crossing(probe.fits),
    )


def nearest(
    state: Callable[[float], State | None], *, whole: bool = False
) -> tuple[float, State] | None:
    """The factor nearest to 1 at which a state changes, and what it changes to.

    Octave by octave to both sides, then by bisection; `whole` leaves it at powers of 2. A state of
    None ends its side. Two changes within one octave count as none.
    """
    now = state(1.0)
    open_sides = {1, -1}
    for octave in range(1, OCTAVES + 1):
        found: list[tuple[float, State]] = []
        for side in sorted(open_sides):
            there = state(2.0 ** (side * octave))
            if there is None:
                open_sides.discard(side)
            elif there != now:
                inner, outer = 2.0 ** (side * (octave - 1)), 2.0 ** (side * octave)
                found.append((outer, there) if whole else _bisect(state, now, inner, outer))
        if found:
            return min(found, key=lambda pair: abs(math.log(pair[0])))
    return None


def _bisect(
    state: Callable[[float], State | None], now: State | None, inner: float, outer: float
) -> tuple[float, State]:
    """The last factor, coming from `inner`, that is not in the present state any more."""
    while abs(math.log(outer / inner)) > CLOSE:
        middle = math.sqrt(inner * outer)
        inner, outer = (middle, outer) if state(middle) == now else (inner, middle)
    return outer, state(outer) or ""


def _searched(case: Case, name: str) -> Iterator[Searched]:
    """The best at half and twice the work."""
    job = case.job
    before = job.batch if name == "batch" else job.seq
    for factor in (0.5, 2.0):
        value, best, problem = factor * before, None, None
        other = _resized(case, name, int(value)) if value == int(value) else None
        if other is None:
            problem = f"{value:g} is not whole, or too many"
        else:
            try:
                best = other.rank(keep=1).candidates[0]
            except NoStrategy as error:
                problem = error.problems[0]
        if best and not best.fits:
            best, problem = None, "nothing fits"
        yield Searched(
            factor=factor,
            value=value,
            step_s=float(best.time.step_s) if best else None,
            mesh=best.mesh.sizes if best else None,
            same=bool(best and best.mesh == case.layout.mesh),
            problem=problem,
        )


def order(found: Mapping[str, Sensitivity]) -> list[Sensitivity]:
    """The numbers that move the step most, first."""
    return sorted(found.values(), key=lambda s: -abs(s.elasticity or 0.0))
