"""Rank training strategies: every legal one, evaluated as arrays.

A strategy is a cell (mesh, placement, microbatch) under a form (ZeRO, schedule, chunks, remat, way
of the context). What one microbatch takes is evaluated once for all cells of a group; each form
then adds its own few terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.calibration import Calibration
from shardwise.estimate.layout_step import LayoutStep
from shardwise.estimate.memory import Memory, step_memory
from shardwise.estimate.passes import Passes, passes
from shardwise.estimate.prices import Prices
from shardwise.estimate.rates import Kernels, Rates
from shardwise.estimate.step import StepTime, step_time
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.ops.program import Step, training_step
from shardwise.search.cells import Cells, cells
from shardwise.search.forms import MOST_CHUNKS, Fixed, Group
from shardwise.search.legal import context_fits, roles_of
from shardwise.strategy.layout import Form, Layout, Layouts, data_shards, table
from shardwise.strategy.mesh import Mesh, Placement
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import stages
from shardwise.workload import Train

BLOCK = 1 << 11  # cells that are evaluated together
SHOWN = 8  # strategies ranked in full: the reasons and alternatives are taken from them

# What fits comes first: by expected time, then by the upper bound. What does not: by memory.
Score = tuple[bool, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One strategy with its cost.

    Args:
        time: at the rates of the calibration.
        roofline: at the peaks, products only.
    """

    layout: Layout
    placement: Placement
    works: Step
    prices: Prices
    time: StepTime
    roofline: StepTime
    memory: Memory

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    @property
    def fits(self) -> bool:
        return bool(self.memory.fits)

    @property
    def rank(self) -> Score:
        """See `Score`."""
        return score(self.fits, self.time.step_s, self.time.upper_s, self.memory.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a search found.

    Args:
        candidates: the best, best first.
        n_strategies: legal strategies that were evaluated.
        n_fitting: those that fit into memory.
    """

    candidates: list[Candidate]
    n_strategies: int
    n_fitting: int


def score(fits: bool, expected: float, upper: float, n_bytes: float) -> Score:
    """Times that differ by the order of their sums alone are equal."""
    if not fits:
        return (True, float(n_bytes), 0.0)
    return (False, float(f"{expected:.9e}"), float(f"{upper:.9e}"))


def evaluate(
    config: ModelConfig,
    job: Train,
    system: System,
    layout: Layout,
    cal: Calibration,
    placement: Placement | None = None,
) -> Candidate:
    """One strategy; on the placement with the least traffic when none is given."""
    one = LayoutStep(config, system, job, layout, placement)
    capacity = system.chip.need("hbm_bytes")
    return Candidate(
        layout=layout,
        placement=one.placement,
        works=one.works,
        prices=one.prices,
        time=one.at(cal, Kernels()),
        roofline=one.at(),
        memory=step_memory(config, job, one.works, layout, capacity),
    )


def rank(
    config: ModelConfig,
    job: Train,
    system: System,
    cal: Calibration,
    fixed: Fixed | None = None,
    most: Mapping[str, int] | None = None,
    keep: int = SHOWN,
    exhaustive: bool = False,
) -> Ranking:
    """The best meshes, each under its best form, best first.

    Cells are taken in the order of a bound below all their strategies, until none that is left can
    be among the `keep` best meshes or the best of its tensor size.

    Args:
        cal: what the chip reaches of its rates.
        fixed: roles of the mesh and words of a form that are given.
        most: largest sizes of mesh roles.
        keep: how many of the best to return; the best of every tensor size is always there.
        exhaustive: evaluate every strategy, also those that the bound excludes.

    Raises:
        NoStrategy: when no strategy is legal.
    """
    fixed = fixed or {}
    every = cells(config, job, system, roles_of(fixed), most or {})
    if every is None:
        raise NoStrategy(f"no split of {system.n_chips:,} chips is legal.")
    rates = Rates(chip=system.chip, job=job, cal=cal, kernels=Kernels())
    best = _Best(keep)
    blocks = []
    for group, some in _groups(every):
        blocks += list(_blocks(_GroupSearch(config, job, group, some, rates, fixed)))
    for bound, block in sorted(blocks, key=lambda pair: pair[0]):
        if exhaustive or best.may_improve(bound, block.cells):
            block.run(best)
    if not best.n_strategies:
        raise NoStrategy("no schedule, microbatch and mesh go together.")
    chosen = [
        evaluate(config, job, system, layout, cal, placement) for layout, placement in best.first()
    ]
    return Ranking(
        candidates=sorted(chosen, key=lambda c: c.rank),
        n_strategies=best.n_strategies,
        n_fitting=best.n_fitting,
    )


def _groups(every: Cells) -> Iterator[tuple[Group, Cells]]:
    """Cells that share their tables and words.

    Weights that `context` alone would shard may stay whole too.
    """
    sizes = every.sizes
    piped, cut, fsdp = sizes["pipe"] > 1, sizes["context"] > 1, sizes["fsdp"] > 1
    copied = sizes["data"] * sizes["context"] > 1
    for sharded, has_pipe, has_cut, has_copies in itertools.product((False, True), repeat=4):
        there = (fsdp | cut) if sharded else ~fsdp
        mask = there & (piped == has_pipe) & (cut == has_cut) & (copied == has_copies)
        if mask.any():
            yield Group(sharded, has_pipe, has_cut, has_copies), every.take(mask.nonzero()[0])


def _blocks(whole: _GroupSearch) -> Iterator[tuple[tuple[bool, float], _GroupSearch]]:
    """Parts of a group with their bounds, of cells whose bounds are near."""
    import numpy as np

    too_large, seconds = whole.bound()
    order = np.lexsort((seconds, too_large))
    for start in range(0, len(order), BLOCK):
        rows = order[start : start + BLOCK]
        part = _GroupSearch(
            whole.config, whole.job, whole.group, whole.cells.take(rows), whole.rates, whole.fixed
        )
        yield (bool(too_large[rows[0]]), float(seconds[rows[0]])), part


@dataclass
class _Best:
    """The best form of every cell seen so far, and how many strategies there were."""

    keep: int
    groups: list[_GroupSearch] = field(default_factory=list)
    n_strategies: int = 0
    n_fitting: int = 0
    meshes: dict[Mesh, float] = field(default_factory=dict)  # time of the best that fits

    def may_improve(self, bound: tuple[bool, float], some: Cells) -> bool:
        """Whether cells with this bound can be among the best that are asked for."""
        too_large, seconds = bound
        if too_large:  # nothing of it fits: looked at only where nothing fits at all
            return not self.meshes
        times = sorted(self.meshes.values())
        if len(times) < self.keep or seconds < times[self.keep - 1]:
            return True
        widths: dict[int, float] = {}
        for mesh, time in self.meshes.items():
            widths[mesh.tensor] = min(time, widths.get(mesh.tensor, time))
        return any(
            seconds < widths.get(int(width), float("inf")) for width in set(some.sizes["tensor"])
        )

    def add(self, block: _GroupSearch) -> None:
        """The cells of a block that has been run."""
        self.groups.append(block)
        for (too_large, value), _, i in block.rows():
            mesh = block.cells.meshes[i]
            if not too_large and value < self.meshes.get(mesh, float("inf")):
                self.meshes[mesh] = value

    def first(self) -> list[tuple[Layout, Placement]]:
        """The best layouts of different meshes: `keep`, and the best of every tensor size."""
        rows = sorted((row for group in self.groups for row in group.rows()), key=lambda r: r[0])
        found: dict[Mesh, tuple[Layout, Placement]] = {}
        widths: set[int] = set()
        for _, group, i in rows:
            mesh = group.cells.meshes[i]
            if mesh not in found and (len(found) < self.keep or mesh.tensor not in widths):
                found[mesh] = (group.layout(i), group.cells.placements[i])
                widths.add(mesh.tensor)
        return list(found.values())


class _GroupSearch:
    """All forms of some cells of one group."""

    def __init__(
        self,
        config: ModelConfig,
        job: Train,
        group: Group,
        some: Cells,
        rates: Rates,
        fixed: Fixed,
    ) -> None:
        import numpy as np

        self.config, self.job, self.group = config, job, group
        self.cells, self.rates, self.fixed = some, rates, fixed
        n = len(some)
        self.forms: list[tuple[Form, int]] = []
        self.score = np.full((2, n), np.inf)  # does it not fit; its time, or its memory
        self.form = np.full(n, -1)
        self.known: dict[tuple[str, bool, int | None], tuple[Step, Passes]] = {}

    def bound(self) -> tuple[Num, Num]:
        """(whether a cell fits under no form, seconds below all its strategies).

        Under 1F1B with full remat and all of ZeRO a cell holds least. No form is faster than 1F1B
        without remat, bubble, routing and traffic of the context.
        """
        forms = [f for f in self.group.forms(self.config, self.job, {}) if not f.expert_tensor]
        plain = [f for f in forms if f.schedule in ("none", "1f1b")]
        least, fastest = self._layouts(plain[-1], 1), self._layouts(plain[0], 1)
        capacity = self.rates.chip.need("hbm_bytes")
        works, one = self._passes(fastest)  # what is kept does not depend on remat
        memory = step_memory(self.config, self.job, works, least, capacity)
        time = step_time(self.config, fastest, one, self.cells.prices, self.rates)
        apart = time.comm_s.get("expert", 0.0) + time.comm_s.get("context", 0.0)
        return ~memory.fits, time.step_s - time.bubble_s - apart

    def run(self, best: _Best) -> None:
        """Evaluate every form."""
        for form in self.group.forms(self.config, self.job, self.fixed):
            for virtual in self._chunks(form):
                split = self._layouts(form, virtual)
                legal = self._legal(form, split)
                if legal.any():
                    self._evaluate(split, legal, best)
        best.add(self)

    def _chunks(self, form: Form) -> Sequence[int]:
        if form.schedule != "interleaved":
            return (1,)
        most = min(MOST_CHUNKS, self.config.n_layers // 2)
        given = self.fixed.get("virtual")
        return [v for v in range(2, most + 1) if given in (None, v)]

    def _layouts(self, form: Form, virtual: int) -> Layouts:
        words = {name: getattr(form, name) for name in Form.__dataclass_fields__}
        return Layouts(
            **words,
            sizes=self.cells.sizes,
            micro_batch=self.cells.micro_batch,
            n_microbatches=self.cells.n_microbatches,
            virtual=virtual,
        )

    def _legal(self, form: Form, split: Layouts) -> Num:
        """Which cells can have this form."""
        sizes = split.sizes
        legal = context_fits(self.config, form, sizes)
        if form.expert_tensor:
            legal = legal & (sizes["tensor"] > 1)
        if form.schedule == "none":
            return legal
        schedule, p = find(form.schedule), sizes["pipe"]
        chunks = schedule.chunks or split.virtual
        # A stage may hold a layer less than another, not a chunk less.
        even = stages(self.config.n_layers, split).spare < p
        return legal & even & schedule.legal(p, split.n_microbatches, chunks)

    def _passes(self, split: Layouts) -> tuple[Step, Passes]:
        """One microbatch, evaluated once for all forms that do not change it."""
        key = (split.context_kind, split.remat == "full", split.expert_tensor)
        if key not in self.known:
            batch = split.micro_batch * data_shards(split.sizes)
            remat = "full" if split.remat == "full" else "none"
            works = training_step(self.config, batch, self.job.seq, table(split), remat=remat)
            found = passes(self.config, works, split, self.cells.prices, self.rates)
            self.known[key] = (works, found)
        return self.known[key]

    def _evaluate(self, split: Layouts, legal: Num, best: _Best) -> None:
        """The form on some of the cells."""
        import numpy as np

        works, one = self._passes(split)
        prices = self.cells.prices
        capacity = self.rates.chip.need("hbm_bytes")
        memory = step_memory(self.config, self.job, works, split, capacity)
        time = step_time(self.config, split, one, prices, self.rates)
        too_large = ~memory.fits
        value = np.where(too_large, memory.total, time.step_s)
        best.n_strategies += int(legal.sum())
        best.n_fitting += int((legal & ~too_large).sum())
        first, second = self.score
        better = (too_large < first) | ((too_large == first) & (value < second))
        better &= legal
        first[better], second[better] = too_large[better], value[better]
        self.form[better] = len(self.forms)
        self.forms.append((split, split.virtual))

    def rows(self) -> Iterator[tuple[tuple[float, float], _GroupSearch, int]]:
        """(score, this, cell) of the cells that have a form."""
        for i in (self.form >= 0).nonzero()[0]:
            yield (float(self.score[0, i]), float(self.score[1, i])), self, int(i)

    def layout(self, i: int) -> Layout:
        """The best layout of a cell."""
        form, virtual = self.forms[self.form[i]]
        mesh = self.cells.meshes[i]
        words = {name: getattr(form, name) for name in Form.__dataclass_fields__}
        words["sequence_parallel"] = mesh.tensor > 1
        return Layout(
            **words,
            mesh=mesh,
            micro_batch=int(self.cells.micro_batch[i]),
            n_microbatches=int(self.cells.n_microbatches[i]),
            virtual=virtual,
        )
