"""Evaluation of training strategies as arrays: blocks of cells under all their forms.

A strategy is a cell (mesh, placement, microbatch size) under a form (ZeRO stage, schedule, chunks,
remat policy, context kind). Forms share the time of one microbatch, which is evaluated once for a
block of cells; placements of a mesh share everything but their collectives (`chip_work`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from shardwise.arrays import Num
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.layout_step import training_program
from shardwise.estimate.training.microbatch import MicrobatchTime, microbatch_time
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.step import OncePerStep, once_per_step, step_time
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.search.given import Fixed
from shardwise.search.training import framework_limits
from shardwise.search.training.best import Best
from shardwise.search.training.cells import Cells
from shardwise.search.training.chip_work import SHARED_ROWS, ChipWork, ComputeKey
from shardwise.search.training.forms import (
    MAX_CHUNKS,
    Group,
    WithoutRemat,
    framework_forms,
    without_remat,
)
from shardwise.search.training.legal import is_legal
from shardwise.search.training.runtime_limits import is_run
from shardwise.strategy.layout import Form, Layout, Layouts
from shardwise.strategy.schedules import chunked
from shardwise.workload import Train

BATCH_CELLS = 1 << 12  # number of cells evaluated together
# Number of cells in the first batch of a group. It is smaller because its results may exclude many
# of the other cells by their lower bounds.
FIRST_BATCH_CELLS = 1 << 9

TimeKey = tuple[str, str, int | None]  # context kind, remat, expert_tensor


class Block:
    """Cells of one group, evaluated under all forms of the group; keeps the best form of each.

    Attributes:
        chunks: for each cell, the chunks of layers on a stage under its best form.
        forms: the forms evaluated so far.
        score: array [2, number of cells] for each cell's best form: first whether it is too large
            for the memory (1 or 0), then its step seconds, or its bytes of memory if too large.
        form: for each cell, the index in `forms` of its best form; -1 without a legal form.
        least_s: for each cell, a lower bound of its step seconds under any form; 0 if not computed.
        parent: the block from which the cells were taken and their rows in it, or None.
        work: compute and memory, in one row for all placements of a mesh and microbatch size.
        work_rows: for each cell, its row in `work`.
    """

    def __init__(
        self,
        config: ModelConfig,
        job: Train,
        group: Group,
        cells: Cells,
        rates: Rates,
        fixed: Fixed,
        chunks: Num = 1,
        work: tuple[ChipWork, Num] | None = None,
    ) -> None:
        """Args as the attributes; `work` is any that has the cells, and the row of each cell."""
        import numpy as np

        self.config = config
        self.job = job
        self.group = group
        self.cells = cells
        self.rates = rates
        self.fixed = fixed
        n_cells = len(cells)
        self.chunks = np.full(n_cells, chunks)
        self.forms: list[Form] = []
        self.score = np.full((2, n_cells), np.inf)
        self.form = np.full(n_cells, -1)
        self.least_s = np.zeros(n_cells)
        self.parent: tuple[Block, Num] | None = None
        if work is None:
            distinct, rows = cells.distinct()
            work = (ChipWork(config, job, rates, distinct), rows)
        source, source_rows = work
        numbers = source_rows * (MAX_CHUNKS + 1) + self.chunks
        _, first, self.work_rows = np.unique(numbers, return_index=True, return_inverse=True)
        self.work = source.take(source_rows[first], self.chunks[first])
        self._microbatches: dict[TimeKey, MicrobatchTime] = {}
        # Program of a microbatch, and its time without collectives.
        self._programs: dict[ComputeKey, tuple[Step, MicrobatchTime]] = {}
        self._once: dict[tuple[int, str], OncePerStep] = {}
        self._legal: dict[WithoutRemat, Num] = {}
        self._excluded: dict[tuple[object, ...], list[tuple[Form, Num]]] = {}

    def is_searched(self) -> Num:
        """Whether each cell is searched: those that the runtime runs under any form, or all."""
        import numpy as np

        if self.fixed.any_layout or framework_limits.is_known(self.job.framework):
            return np.ones(len(self.cells), bool)
        for form in framework_forms(self.group, self.config, self.job, self.fixed):
            layouts = self.work.cells.layouts(_least_demanding(form), self.work.chunks)
            return is_run(self.config, self.job, layouts, self.rates.chip)[self.work_rows]
        return np.zeros(len(self.cells), bool)

    def is_legal(self, form: Form) -> Num:
        """Whether a form is legal, and one that the user admits, in each row of `work`."""
        return self._are_legal(self.work.cells.layouts(form, self.work.chunks))

    def _are_legal(self, layouts: Layouts) -> Num:
        """Whether each of the layouts is legal, and one that the user admits."""
        legal = is_legal(self.config, self.job, layouts)
        if self.fixed.any_layout:
            return legal
        if framework_limits.is_known(self.job.framework):
            framework = self.job.framework
            return legal & framework_limits.is_run(framework, self.config, self.rates.chip, layouts)
        return legal & is_run(self.config, self.job, layouts, self.rates.chip)

    def batches(self, too_large: Num, seconds: Num) -> Iterator[tuple[tuple[bool, float], Num]]:
        """(lowest bound, rows) of batches of cells with similar bounds, lowest bounds first.

        Args:
            too_large: first result of `bound`.
            seconds: second result of `bound`.
        """
        import numpy as np

        order = np.lexsort((seconds, too_large))
        start = 0
        size = FIRST_BATCH_CELLS
        while start < len(order):
            rows = order[start : start + size]
            yield (bool(too_large[rows[0]]), float(seconds[rows[0]])), rows
            start += size
            size = BATCH_CELLS

    def take(
        self, rows: Num, chunks: Num = 1, group: Group | None = None, fixed: Fixed | None = None
    ) -> Block:
        """A new block of the cells at the indices `rows`, not evaluated yet.

        Args:
            chunks: for each cell, the chunks of layers on a stage.
            group: a group with the same sharding rules to which the cells belong.
            fixed: settings of a narrower search.
        """
        block = Block(
            self.config,
            self.job,
            group or self.group,
            self.cells.take(rows),
            self.rates,
            self.fixed if fixed is None else fixed,
            chunks,
            work=(self.work, self.work_rows[rows]),
        )
        block.parent = (self, rows)
        block.least_s = self.least_s[rows]
        return block

    def run(self, best: Best) -> None:
        """Evaluate every form and add the results to `best`."""
        chunked_forms: dict[str, list[Form]] = {}
        other_forms: list[Form] = []
        for form in framework_forms(self.group, self.config, self.job, self.fixed):
            if chunked(form.schedule):
                chunked_forms.setdefault(form.schedule, []).append(form)
            else:
                other_forms.append(form)
        self._evaluate_all(other_forms, best)
        for forms in chunked_forms.values():
            self._evaluate_chunked(forms, best)
        best.add(self)

    def _evaluate_all(self, forms: Sequence[Form], best: Best) -> None:
        """Evaluate forms on the cells of this block, wherever they are legal."""
        for form in forms:
            if not (self.least_s < best.slowest_s).any():
                break
            key = without_remat(form)
            if key not in self._legal:
                self._legal[key] = self.is_legal(form)[self.work_rows]
            legal = self._legal[key] & (self.least_s < best.slowest_s)
            legal = legal & ~self._is_excluded(form, best)
            if legal.any():
                self._evaluate(form, legal, best)

    def _evaluate_chunked(self, forms: Sequence[Form], best: Best) -> None:
        """Evaluate the forms of a schedule whose stages have several chunks of layers.

        Each number of chunks makes another cell, so they are evaluated in a separate block.
        """
        rows, chunks = self._chunk_counts(forms[0])
        if len(rows):
            block = self.take(rows, chunks)
            block._evaluate_all(forms, best)
            self._merge(block, rows)

    def _chunk_counts(self, form: Form) -> tuple[Num, Num]:
        """(rows, chunks): each cell once for every legal number of chunks on its stages."""
        import numpy as np

        counts = np.arange(2, min(MAX_CHUNKS, self.config.n_layers // 2) + 1)
        if "virtual" in self.fixed:
            counts = counts[counts == self.fixed["virtual"]]
        n_rows = len(self.work.cells)
        cells = self.work.cells.take(np.tile(np.arange(n_rows), len(counts)))
        legal = self._are_legal(cells.layouts(_least_demanding(form), np.repeat(counts, n_rows)))
        count_rows, rows = legal.reshape(len(counts), n_rows)[:, self.work_rows].nonzero()
        return rows, counts[count_rows]

    def _merge(self, other: Block, rows: Num) -> None:
        """Copy the best forms of another block's cells to this block, where they are better.

        Args:
            rows: for each cell of `other`, its row in this block; rows may repeat.
        """
        import numpy as np

        order = np.lexsort((np.arange(len(rows)), *other.score[::-1]))
        cells, first = np.unique(rows[order], return_index=True)
        best_rows = order[first]  # the best row of `other` for each cell
        old_too_large, old_value = self.score[:, cells]
        new_too_large, new_value = other.score[:, best_rows]
        better = (new_too_large == old_too_large) & (new_value < old_value)
        better = (other.form[best_rows] >= 0) & ((new_too_large < old_too_large) | better)
        cells = cells[better]
        best_rows = best_rows[better]
        self.score[:, cells] = other.score[:, best_rows]
        self.form[cells] = len(self.forms) + other.form[best_rows]
        self.chunks[cells] = other.chunks[best_rows]
        self.forms += other.forms

    def priced(self, form: Form) -> PricedLayout:
        """The layouts of all cells under a form, with what prices their items."""
        return self.cells.priced(self.config, self.rates, form, self.chunks)

    def microbatch(self, form: Form) -> MicrobatchTime:
        """Time of one microbatch of each cell, evaluated once for forms that share it."""
        remat = str(form.full_remat)
        if form.offloads_activations:
            remat = f"{form.policy} {form.offload}"
        key = (form.context_kind, remat, form.expert_tensor)
        if key not in self._microbatches:
            time = self._inherited_time(form, key)
            if time is None:
                time = microbatch_time(self.priced(form), *self._program(form))
            self._microbatches[key] = time
        return self._microbatches[key]

    def _inherited_time(self, form: Form, key: TimeKey) -> MicrobatchTime | None:
        """The time that the parent has evaluated, or can for little more; None if there is none."""
        if self.parent is None:
            return None
        parent, rows = self.parent
        if key not in parent._microbatches and len(parent.cells) > SHARED_ROWS:
            return None
        return parent.microbatch(form).take(rows)

    def _program(self, form: Form) -> tuple[Step, MicrobatchTime]:
        """(program of a microbatch of each cell, its time without collectives)."""
        key = (form.full_remat, form.expert_tensor)
        if key not in self._programs:
            compute = self.work.compute(form)
            if self._has_own_rows:
                self._programs[key] = (self.work.program(form), compute)
            else:
                layouts = self.cells.layouts(form, self.chunks)
                program = training_program(self.config, self.job, layouts)
                self._programs[key] = (program, compute.take(self.work_rows))
        return self._programs[key]

    @cached_property
    def _has_own_rows(self) -> bool:
        """Whether `work` has one row for each cell, in the same order."""
        import numpy as np

        return np.array_equal(self.work_rows, np.arange(len(self.work.cells)))

    def _once_per_step(self, priced: PricedLayout) -> OncePerStep:
        """Gradient sync and update of each cell, evaluated once for forms that share them."""
        key = (priced.layout.zero, priced.layout.schedule)
        if key not in self._once:
            self._once[key] = once_per_step(priced)
        return self._once[key]

    def _is_excluded(self, form: Form, best: Best) -> Num:
        """Whether a form cannot improve a cell, judged by those that save less memory.

        Recomputation takes time, and so does ZeRO-2, which sends the gradients of every microbatch;
        both save memory. A form that fits, or that is too slow already, excludes those that differ
        from it only in recomputing more and in a higher ZeRO stage.
        """
        import numpy as np

        excluded = np.zeros(len(self.cells), bool)
        if best.keeps_all:
            return excluded
        for less, excluded_with_less in self._excluded.get(_kind(form), ()):
            recomputes_more = form.full_remat or {*less.recomputed} <= {*form.recomputed}
            if recomputes_more and less.zero <= form.zero:
                excluded = excluded | excluded_with_less
        return excluded

    def _evaluate(self, form: Form, legal: Num, best: Best) -> None:
        """Evaluate one form on all cells and keep it where it is the best so far.

        Args:
            legal: whether the form is legal for each cell.
        """
        import numpy as np

        fits, n_bytes = (column[self.work_rows] for column in self.work.fits_and_bytes(form))
        too_large = ~fits
        value = n_bytes
        excluded = fits
        fitting = legal & fits
        best.n_strategies += int(legal.sum())
        best.n_fitting += int(fitting.sum())
        if fitting.any():  # the time of what does not fit is of no interest
            priced = self.priced(form)
            step_s = step_time(priced, self.microbatch(form), self._once_per_step(priced)).step_s
            value = np.where(too_large, n_bytes, step_s)
            best.add_to_front(self, step_s, n_bytes, fitting.nonzero()[0])
            best.fastest_s = min(best.fastest_s, float(step_s[fitting].min()))
            excluded = fits | (step_s >= best.slowest_s)
        self._excluded.setdefault(_kind(form), []).append((form, excluded))
        best_too_large, best_value = self.score
        better = (too_large < best_too_large) | (
            (too_large == best_too_large) & (value < best_value)
        )
        better &= legal
        best_too_large[better] = too_large[better]
        best_value[better] = value[better]
        self.form[better] = len(self.forms)
        self.forms.append(form)

    def legal_rows(self) -> Num:
        """Indices of the cells that have a legal form."""
        return (self.form >= 0).nonzero()[0]

    def layout(self, row: int, form_index: int | None = None) -> Layout:
        """The layout of a cell under its best form, or under the form at `form_index`."""
        if form_index is None:
            form_index = self.form[row]
        form = self.forms[form_index]
        mesh = self.cells.meshes[row]
        form_fields = {name: getattr(form, name) for name in Form.__dataclass_fields__}
        form_fields["sequence_parallel"] = form.sequence_parallel and mesh.tensor > 1
        virtual = 1
        if chunked(form.schedule):
            virtual = int(self.chunks[row])
        return Layout(
            **form_fields,
            mesh=mesh,
            micro_batch=int(self.cells.micro_batch[row]),
            n_microbatches=int(self.cells.n_microbatches[row]),
            virtual=virtual,
        )


def _kind(form: Form) -> tuple[object, ...]:
    """What tells a form apart from others, except its remat policy and ZeRO stage."""
    return (form.context_kind, form.expert_tensor, form.schedule)


def _least_demanding(form: Form) -> Form:
    """The form that is legal wherever another one of its schedule is."""
    return replace(form, context_kind="gather", expert_tensor=None)
