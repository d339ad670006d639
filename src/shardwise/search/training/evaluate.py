"""The search on arrays: blocks of cells under all their forms, and the best that was seen.

A strategy is a cell (mesh, placement, microbatch) under a form (ZeRO, schedule, chunks, remat, way
of the context). What one microbatch takes is evaluated once for a block of cells; each form then
adds its own few terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from shardwise.arrays import Num, minimum
from shardwise.estimate.chip_memory import Memory
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.layout_step import training_program
from shardwise.estimate.training.memory.framework import planned_framework
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.estimate.training.memory.stages import LocalShapes
from shardwise.estimate.training.microbatch import MicrobatchTime, microbatch_time
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.step import step_time
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.search.given import Choices
from shardwise.search.training.cells import Cells
from shardwise.search.training.forms import MOST_CHUNKS, Group, lighter, smallest
from shardwise.search.training.legal import chunks_fit, context_fits, experts_fit
from shardwise.strategy.layout import Form, Layout, Layouts
from shardwise.strategy.mesh import Mesh, Placement
from shardwise.strategy.schedules import chunked, find
from shardwise.strategy.stages import filled
from shardwise.vocabulary import NO_SCHEDULE
from shardwise.workload import Train

BLOCK = 1 << 12  # cells that are evaluated together
PROBE = 1 << 9  # of each group first, so that the bounds of the others can exclude them
FAR = 2.0  # times the best step: slower tensor sizes are no alternatives


def groups(every: Cells, seq: int) -> Iterator[tuple[Group, Cells]]:
    """Cells that share their tables and words.

    Weights that `context` alone would shard may stay whole too.
    """
    sizes = every.sizes
    piped, cut, fsdp = sizes["pipe"] > 1, sizes["context"] > 1, sizes["fsdp"] > 1
    copied = sizes["data"] * sizes["context"] * sizes["expert"] > 1
    even = seq % (sizes["tensor"] * sizes["context"]) == 0
    for sharded, *has in itertools.product((False, True), repeat=5):
        mask = (fsdp | cut) if sharded else ~fsdp
        for there, wanted in zip((piped, cut, copied, even), has, strict=True):
            mask = mask & (there == wanted)
        if mask.any():
            yield Group(sharded, *has), every.take(mask.nonzero()[0])


@dataclass
class Best:
    """The best form of every cell seen so far, and how many strategies there were.

    Args:
        keep: how many meshes are asked for. Of 1 no others are, not even of other tensor sizes.
    """

    keep: int
    front: list[Point] | None
    groups: list[Block] = field(default_factory=list)
    n_strategies: int = 0
    n_fitting: int = 0
    meshes: dict[Mesh, float] = field(default_factory=dict)  # time of the best that fits

    def worth(self, some: Cells, too_large: Num, seconds: Num) -> Num:
        """Which cells can be among those that are asked for, by the bounds below them.

        What fits under no form is looked at only where nothing fits at all.
        """
        import numpy as np

        if self.front is not None or not self.meshes:
            return np.ones(len(some), bool)
        times = sorted(self.meshes.values())
        kth = times[self.keep - 1] if len(times) >= self.keep else np.inf
        widths: dict[int, float] = {}
        for mesh, time in self.meshes.items():
            widths[mesh.tensor] = min(time, widths.get(mesh.tensor, np.inf))
        sizes, place = np.unique(some.sizes["tensor"], return_inverse=True)
        far = FAR * times[0] if self.keep > 1 else 0.0
        limits = [max(kth, min(widths.get(int(n), np.inf), far)) for n in sizes]
        return ~too_large & (seconds < np.array(limits)[place])

    def add(self, block: Block) -> None:
        """The cells of a block that has been run."""
        self.groups.append(block)
        for (too_large, value), _, i in block.rows():
            mesh = block.cells.meshes[i]
            if not too_large and value < self.meshes.get(mesh, float("inf")):
                self.meshes[mesh] = value

    def add_front(self, block: Block, seconds: Num, n_bytes: Num, rows: Num) -> None:
        """Keep of these strategies, and of those before, what none beats in time and memory."""
        import numpy as np

        if self.front is None:
            return
        order = np.lexsort((n_bytes[rows], seconds[rows]))
        least = np.minimum.accumulate(n_bytes[rows][order])
        smaller = np.r_[True, least[1:] < least[:-1]] if len(order) else order
        found = [
            (float(seconds[i]), float(n_bytes[i]), block, int(i), len(block.forms))
            for i in rows[order[smaller]]
        ]
        kept: list[Point] = []
        for point in sorted([*self.front, *found], key=lambda p: p[:2]):
            if not kept or point[1] < kept[-1][1]:
                kept.append(point)
        self.front = kept

    def first(self) -> list[tuple[Layout, Placement]]:
        """The best layouts of different meshes: `keep`, and the best of every other tensor size."""
        rows = sorted((row for group in self.groups for row in group.rows()), key=lambda r: r[0])
        found: dict[Mesh, tuple[Layout, Placement]] = {}
        widths: set[int] = set()
        for _, group, i in rows:
            mesh = group.cells.meshes[i]
            wanted = len(found) < self.keep or (self.keep > 1 and mesh.tensor not in widths)
            if mesh not in found and wanted:
                found[mesh] = (group.layout(i), group.cells.placements[i])
                widths.add(mesh.tensor)
        return list(found.values())


# Of a front: seconds, bytes, where its cell and form are.
Point = tuple[float, float, "Block", int, int]


class Block:
    """All forms of some cells of one group."""

    def __init__(
        self,
        config: ModelConfig,
        job: Train,
        group: Group,
        some: Cells,
        rates: Rates,
        fixed: Choices,
        chunks: Num = 1,
    ) -> None:
        import numpy as np

        self.config, self.job, self.group = config, job, group
        self.cells, self.rates, self.fixed = some, rates, fixed
        n = len(some)
        self.chunks = np.full(n, chunks)  # of a stage, under the best form
        self.forms: list[Form] = []
        self.score = np.full((2, n), np.inf)  # does it not fit; its time, or its memory
        self.form = np.full(n, -1)
        self.known: dict[tuple[str, str, int | None], tuple[Step, MicrobatchTime, LocalShapes]] = {}
        self.base: tuple[Block, Num] | None = None  # whose cells these are, and which of them
        self.products: dict[tuple[str, int | None], MicrobatchTime] = {}
        self.legal: dict[tuple[str, str, int | None], Num] = {}

    def bound(self) -> tuple[Num, Num]:
        """(whether a cell fits under no form, seconds below all its strategies).

        Under 1F1B with full remat and all of ZeRO a cell holds least, but for schedules that say
        they hold less. No form is faster than 1F1B without remat, bubble, ends, routing, and
        traffic of the context and between stages.
        """
        given = {name: n for name, n in self.fixed.items() if name == "loss_chunks"}
        forms = list(self.group.forms(self.config, self.job, given))
        found = [
            self._bound([f for f in forms if f.expert_tensor == split])
            for split in dict.fromkeys(f.expert_tensor for f in forms)
        ]
        too_large, seconds = found[0]
        for also_too_large, others in found[1:]:
            too_large, seconds = too_large & also_too_large, minimum(seconds, others)
        return too_large, seconds

    def _bound(self, forms: Sequence[Form]) -> tuple[Num, Num]:
        """The same for forms that deal out experts alike."""
        plain = [f for f in forms if f.schedule in (NO_SCHEDULE, "1f1b")]
        fastest = self._layouts(plain[0])
        priced = self._priced(fastest)
        program, one, shapes = self._microbatch(priced)  # what is kept does not depend on remat
        fits: Num = False
        for form in [smallest(plain), *lighter(forms)]:
            memory = self._memory(self._layouts(form), program, shapes)
            fits = fits | memory.fits
        traffic = {r: t for r, t in one.traffic.items() if r not in ("expert", "context")}
        time = step_time(priced, replace(one, traffic=traffic))
        apart = time.comm_s["pipe"] + time.head_s if self.group.piped else 0.0
        return ~fits, time.step_s - time.bubble_s - apart

    def parts(self, too_large: Num, seconds: Num) -> Iterator[tuple[tuple[bool, float], Num]]:
        """(least bound, rows) of parts of the cells whose bounds are near, least first."""
        import numpy as np

        order = np.lexsort((seconds, too_large))
        start, size = 0, PROBE
        while start < len(order):
            rows = order[start : start + size]
            yield (bool(too_large[rows[0]]), float(seconds[rows[0]])), rows
            start, size = start + size, BLOCK

    def take(self, rows: Num) -> Block:
        """The same search on some of the cells."""
        some = self.cells.take(rows)
        return Block(self.config, self.job, self.group, some, self.rates, self.fixed)

    def run(self, best: Best) -> None:
        """Evaluate every form."""
        forms = list(self.group.forms(self.config, self.job, self.fixed))
        self._try([f for f in forms if not chunked(f.schedule)], best)
        for schedule in dict.fromkeys(f.schedule for f in forms if chunked(f.schedule)):
            self._try_chunked([f for f in forms if f.schedule == schedule], best)
        best.add(self)

    def _try_chunked(self, forms: Sequence[Form], best: Best) -> None:
        """Evaluate the forms of a schedule whose stages hold several chunks of layers."""
        rows, chunks = self._chunked(forms[0])
        if len(rows):
            some = self.cells.take(rows)
            given = (self.config, self.job, self.group, some, self.rates, self.fixed)
            other = Block(*given, chunks)
            other.base = self, rows
            other._try(forms, best)
            self._join(other, rows)

    def _try(self, forms: Sequence[Form], best: Best) -> None:
        """Evaluate some forms."""
        for form in forms:
            key = (form.schedule, form.context_kind, form.expert_tensor)
            if key not in self.legal:  # whatever its ZeRO and remat
                self.legal[key] = self._legal(form, self._layouts(form, self.chunks))
            if self.legal[key].any():
                self._evaluate(self._layouts(form, self.chunks), self.legal[key], best)

    def _chunked(self, form: Form) -> tuple[Num, Num]:
        """Cells, once for each number of chunks that an interleaved stage of theirs can have."""
        import numpy as np

        most, given = min(MOST_CHUNKS, self.config.n_layers // 2), self.fixed.get("virtual")
        numbers = [v for v in range(2, most + 1) if given in (None, v)]
        form = replace(form, context_kind="gather", expert_tensor=None)  # the least to ask for
        rows = [self._legal(form, self._layouts(form, v)).nonzero()[0] for v in numbers]
        return np.concatenate([[], *rows]).astype(int), np.repeat(numbers, [len(r) for r in rows])

    def _join(self, other: Block, rows: Num) -> None:
        """Take over what another block found for cells of this one, where it is better.

        Args:
            rows: of this block, the cell behind each of the other's, which may come more than once.
        """
        import numpy as np

        order = np.lexsort((np.arange(len(rows)), *other.score[::-1]))
        cells, first = np.unique(rows[order], return_index=True)  # the best of each
        found = order[first]
        (old, value), (new, less) = self.score[:, cells], other.score[:, found]
        better = (other.form[found] >= 0) & ((new < old) | ((new == old) & (less < value)))
        cells, found = cells[better], found[better]
        self.score[:, cells] = other.score[:, found]
        self.form[cells] = len(self.forms) + other.form[found]
        self.chunks[cells] = other.chunks[found]
        self.forms += other.forms

    def _layouts(self, form: Form, virtual: Num = 1) -> Layouts:
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
        legal = legal & chunks_fit(split, self.job.seq)
        if form.expert_tensor:
            legal = legal & (sizes["tensor"] > 1) & experts_fit(self.config, form, sizes)
        if not form.is_pipelined:
            return legal
        schedule, p = find(form.schedule), sizes["pipe"]
        chunks = schedule.chunks or split.virtual
        even = filled(self.config.n_layers, schedule.parts(p, chunks))
        return legal & even & schedule.legal(p, split.n_microbatches, chunks)

    def _microbatch(self, priced: PricedLayout) -> tuple[Step, MicrobatchTime, LocalShapes]:
        """One microbatch, evaluated once for all forms that do not change it."""
        layouts = priced.layout
        remat = str(layouts.full_remat)
        if "activations" in layouts.offload:
            remat = layouts.policy
        key = (layouts.context_kind, remat, layouts.expert_tensor)
        if key not in self.known:
            program = training_program(self.config, self.job, layouts)
            like = self.products.get((remat, layouts.expert_tensor))
            there, rows = self.base or (self, None)
            if key in there.known:
                time = there.known[key][1].take(rows)
            else:
                time = microbatch_time(priced, program, like)
            self.products[remat, layouts.expert_tensor] = time
            self.known[key] = (program, time, LocalShapes(self.config, self.job, program, layouts))
        return self.known[key]

    def _priced(self, layouts: Layouts) -> PricedLayout:
        return PricedLayout(
            config=self.config, layout=layouts, rates=self.rates, costs=self.cells.costs
        )

    def _memory(self, layouts: Layouts, program: Step, shapes: LocalShapes) -> Memory:
        chip = self.rates.chip
        given = (chip.need("hbm_bytes"), planned_framework(chip.kind), shapes)
        return step_memory(self.config, self.job, program, layouts, *given)

    def _evaluate(self, split: Layouts, legal: Num, best: Best) -> None:
        """The form on some of the cells."""
        import numpy as np

        priced = self._priced(split)
        program, microbatch, shapes = self._microbatch(priced)
        memory = self._memory(split, program, shapes)
        time = step_time(priced, microbatch)
        too_large = ~memory.fits
        value = np.where(too_large, memory.total, time.step_s)
        best.n_strategies += int(legal.sum())
        best.n_fitting += int((legal & ~too_large).sum())
        best.add_front(self, time.step_s, memory.total, (legal & ~too_large).nonzero()[0])
        first, second = self.score
        better = (too_large < first) | ((too_large == first) & (value < second))
        better &= legal
        first[better], second[better] = too_large[better], value[better]
        self.form[better] = len(self.forms)
        self.forms.append(split)

    def rows(self) -> Iterator[tuple[tuple[float, float], Block, int]]:
        """(score, this, cell) of the cells that have a form."""
        for i in (self.form >= 0).nonzero()[0]:
            yield (float(self.score[0, i]), float(self.score[1, i])), self, int(i)

    def layout(self, i: int, n: int | None = None) -> Layout:
        """The best layout of a cell, or that of its `n`-th form."""
        form = self.forms[self.form[i] if n is None else n]
        mesh = self.cells.meshes[i]
        words = {name: getattr(form, name) for name in Form.__dataclass_fields__}
        words["sequence_parallel"] = form.sequence_parallel and mesh.tensor > 1
        return Layout(
            **words,
            mesh=mesh,
            micro_batch=int(self.cells.micro_batch[i]),
            n_microbatches=int(self.cells.n_microbatches[i]),
            virtual=int(self.chunks[i]) if chunked(form.schedule) else 1,
        )
