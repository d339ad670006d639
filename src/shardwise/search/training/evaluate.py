"""Evaluation of training strategies as arrays: blocks of cells under all their forms.

A strategy is a cell (mesh, placement, microbatch size) under a form (ZeRO stage, schedule, chunks,
remat policy, context kind). Forms share the time of one microbatch, which is evaluated once for a
block of cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.arrays import Num, minimum
from shardwise.estimate.chip_memory import Memory, capacity_bytes
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
from shardwise.search.given import Fixed
from shardwise.search.training.best import Best
from shardwise.search.training.cells import Cells
from shardwise.search.training.forms import (
    MAX_CHUNKS,
    Group,
    WithoutRemat,
    forms_below_1f1b,
    least_memory_form,
    without_remat,
)
from shardwise.search.training.legal import is_legal
from shardwise.search.training.runtime_limits import is_run
from shardwise.strategy.layout import Form, Layout, Layouts
from shardwise.strategy.schedules import chunked
from shardwise.vocabulary import NO_SCHEDULE
from shardwise.workload import Train

BATCH_CELLS = 1 << 12  # number of cells evaluated together
# Number of cells in the first batch of a group. It is smaller because its results may exclude many
# of the other cells by their lower bounds.
FIRST_BATCH_CELLS = 1 << 9

ProgramKey = tuple[str, str, int | None]  # context kind, remat, expert_tensor


class Block:
    """Cells of one group, evaluated under all forms of the group; keeps the best form of each.

    Attributes:
        chunks: for each cell, the chunks of layers on a stage under its best form.
        forms: the forms evaluated so far.
        score: array [2, number of cells] for each cell's best form: first whether it is too large
            for the memory (1 or 0), then its step seconds, or its bytes of memory if too large.
        form: for each cell, the index in `forms` of its best form; -1 without a legal form.
        parent: the block from which the cells were taken and their rows in it, or None.
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
    ) -> None:
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
        self.parent: tuple[Block, Num] | None = None
        self._microbatches: dict[ProgramKey, tuple[Step, MicrobatchTime, LocalShapes]] = {}
        self._same_compute: dict[tuple[str, int | None], MicrobatchTime] = {}
        self._same_matmuls: dict[int | None, MicrobatchTime] = {}
        self._legal: dict[WithoutRemat, Num] = {}
        self._settled: dict[WithoutRemat, list[tuple[frozenset[str], Num]]] = {}
        self._slowest: Num = np.inf

    def rows_to_search(self) -> Num:
        """Indices of the cells to search: those that the runtime runs under any form, or all."""
        import numpy as np

        if self.fixed.any_layout:
            return np.arange(len(self.cells))
        for form in self.group.forms(self.config, self.job, self.fixed):
            layouts = self._layouts(_least_demanding(form))
            return is_run(self.config, self.job, layouts, self.rates.chip).nonzero()[0]
        return np.arange(0)

    def bound(self) -> tuple[Num, Num]:
        """(whether it fits under no form, lower bound of its step seconds), for each cell.

        A cell needs the least memory under 1F1B, full remat and the highest ZeRO stage, or under a
        schedule that declares to need less than 1F1B. The bound on seconds is the time of 1F1B
        without remat, the bubble, the collectives of `expert` and `context` and, in a pipeline,
        embedding, head and sends between stages.
        """
        chunks = {name: value for name, value in self.fixed.items() if name == "loss_chunks"}
        forms_by_expert_tensor: dict[int | None, list[Form]] = {}
        for form in self.group.forms(self.config, self.job, chunks):
            forms_by_expert_tensor.setdefault(form.expert_tensor, []).append(form)
        bounds = [self._bound(forms) for forms in forms_by_expert_tensor.values()]
        too_large, seconds = bounds[0]
        for other_too_large, other_seconds in bounds[1:]:
            too_large = too_large & other_too_large
            seconds = minimum(seconds, other_seconds)
        return too_large, seconds

    def _bound(self, forms: Sequence[Form]) -> tuple[Num, Num]:
        """The bound over forms with the same `expert_tensor`."""
        plain = [form for form in forms if form.schedule in (NO_SCHEDULE, "1f1b")]
        priced = self._priced(self._layouts(plain[0]))
        # The program does not depend on remat.
        program, microbatch, shapes = self._microbatch(priced)
        fits: Num = False
        for form in [least_memory_form(plain), *forms_below_1f1b(forms)]:
            memory = self._memory(self._layouts(form), program, shapes)
            fits = fits | memory.fits
        traffic = dict(microbatch.traffic)
        for role in ("expert", "context"):
            traffic.pop(role, None)
        time = step_time(priced, replace(microbatch, traffic=traffic))
        seconds = time.step_s - time.bubble_s
        if self.group.pipelined:
            seconds = seconds - (time.comm_s["pipe"] + time.head_s)
        return ~fits, seconds

    def most_left_bytes(self) -> float:
        """Bytes that the roomiest strategy leaves on its fullest chip, beside what is kept free.

        Negative if it does not fit, minus infinity if none is legal. Only the forms that need the
        least memory are evaluated, one for each schedule, kind of context and split of experts.
        Schedules with several chunks need more than 1F1B.
        """
        import numpy as np

        forms_by_key: dict[WithoutRemat, list[Form]] = {}
        for form in self.group.forms(self.config, self.job, self.fixed):
            if not chunked(form.schedule):
                forms_by_key.setdefault(without_remat(form), []).append(form)
        most = -np.inf
        for form in map(least_memory_form, forms_by_key.values()):
            layouts = self._layouts(form)
            program, _, shapes = self._microbatch(self._priced(layouts))
            memory = self._memory(layouts, program, shapes)
            legal = self._is_legal(layouts)
            most = max(most, float(np.where(legal, memory.left, -np.inf).max()))
        return most

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

    def take(self, rows: Num, chunks: Num = 1) -> Block:
        """A new block of the cells at the indices `rows`, not evaluated yet."""
        cells = self.cells.take(rows)
        block = Block(self.config, self.job, self.group, cells, self.rates, self.fixed, chunks)
        block.parent = (self, rows)
        return block

    def run(self, best: Best) -> None:
        """Evaluate every form and add the results to `best`."""
        chunked_forms: dict[str, list[Form]] = {}
        other_forms: list[Form] = []
        for form in self.group.forms(self.config, self.job, self.fixed):
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
        self._slowest = best.slowest(self.cells)
        for form in forms:
            key = without_remat(form)
            if key not in self._legal:
                self._legal[key] = self._is_legal(self._layouts(form, self.chunks))
            legal = self._legal[key] & ~self._is_settled(form, best)
            if legal.any():
                self._evaluate(self._layouts(form, self.chunks), legal, best)

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

        counts = list(range(2, min(MAX_CHUNKS, self.config.n_layers // 2) + 1))
        if "virtual" in self.fixed:
            counts = [count for count in counts if count == self.fixed["virtual"]]
        least_demanding = _least_demanding(form)
        rows = []
        for count in counts:
            rows.append(self._is_legal(self._layouts(least_demanding, count)).nonzero()[0])
        n_rows = [len(row) for row in rows]
        return np.concatenate([[], *rows]).astype(int), np.repeat(counts, n_rows)

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

    def _layouts(self, form: Form, virtual: Num = 1) -> Layouts:
        """The layouts of all cells under a form, with `virtual` chunks on each stage."""
        form_fields = {name: getattr(form, name) for name in Form.__dataclass_fields__}
        return Layouts(
            **form_fields,
            sizes=self.cells.sizes,
            micro_batch=self.cells.micro_batch,
            n_microbatches=self.cells.n_microbatches,
            virtual=virtual,
        )

    def _is_legal(self, layouts: Layouts) -> Num:
        """Whether each layout is legal, and one of those that the user admits."""
        legal = is_legal(self.config, self.job, layouts)
        if self.fixed.any_layout:
            return legal
        return legal & is_run(self.config, self.job, layouts, self.rates.chip)

    def _microbatch(self, priced: PricedLayout) -> tuple[Step, MicrobatchTime, LocalShapes]:
        """(program, time, local shapes) of one microbatch, cached for forms that share them."""
        layouts = priced.layout
        remat = str(layouts.full_remat)
        if "activations" in layouts.offload:
            remat = layouts.policy
        key = (layouts.context_kind, remat, layouts.expert_tensor)
        if key not in self._microbatches:
            program = training_program(self.config, self.job, layouts)
            time = self._inherited_time(key)
            if time is None:
                same_compute = self._same_compute.get((remat, layouts.expert_tensor))
                same_matmuls = self._same_matmuls.get(layouts.expert_tensor)
                time = microbatch_time(priced, program, same_compute, same_matmuls)
            self._same_compute[remat, layouts.expert_tensor] = time
            self._same_matmuls[layouts.expert_tensor] = time
            shapes = LocalShapes(self.config, self.job, program, layouts)
            self._microbatches[key] = (program, time, shapes)
        return self._microbatches[key]

    def _inherited_time(self, key: ProgramKey) -> MicrobatchTime | None:
        """The time of a microbatch of these cells if the parent block has evaluated it, or None."""
        if self.parent is None:
            return None
        block, rows = self.parent
        if key not in block._microbatches:
            return None
        return block._microbatches[key][1].take(rows)

    def _priced(self, layouts: Layouts) -> PricedLayout:
        return PricedLayout(
            config=self.config, layout=layouts, rates=self.rates, costs=self.cells.costs
        )

    def _memory(self, layouts: Layouts, program: Step, shapes: LocalShapes) -> Memory:
        chip = self.rates.chip
        capacity = capacity_bytes(chip)
        framework = planned_framework(chip.kind)
        return step_memory(self.config, self.job, program, layouts, capacity, framework, shapes)

    def _is_settled(self, form: Form, best: Best) -> Num:
        """Whether no more recomputation can improve each cell, judged by less of it.

        Recomputation takes time and saves memory: a form that fits, or that is too slow already,
        excludes those that differ from it only in recomputing more.
        """
        import numpy as np

        settled = np.zeros(len(self.cells), bool)
        if best.keeps_all:
            return settled
        for less, settled_with_less in self._settled.get(without_remat(form), ()):
            if form.full_remat or less < frozenset(form.recomputed):
                settled = settled | settled_with_less
        return settled

    def _evaluate(self, layouts: Layouts, legal: Num, best: Best) -> None:
        """Evaluate one form on all cells and keep it where it is the best so far.

        Args:
            layouts: the layouts of all cells under the form.
            legal: whether the form is legal for each cell.
        """
        import numpy as np

        priced = self._priced(layouts)
        program, microbatch, shapes = self._microbatch(priced)
        memory = self._memory(layouts, program, shapes)
        time = step_time(priced, microbatch)
        too_large = ~memory.fits
        value = np.where(too_large, memory.total, time.step_s)
        fitting = legal & ~too_large
        best.n_strategies += int(legal.sum())
        best.n_fitting += int(fitting.sum())
        best.add_to_front(self, time.step_s, memory.total, fitting.nonzero()[0])
        settled = memory.fits | (time.step_s >= self._slowest)
        self._settled.setdefault(without_remat(layouts), []).append(
            (frozenset(layouts.recomputed), settled)
        )
        best_too_large, best_value = self.score
        better = (too_large < best_too_large) | (
            (too_large == best_too_large) & (value < best_value)
        )
        better &= legal
        best_too_large[better] = too_large[better]
        best_value[better] = value[better]
        self.form[better] = len(self.forms)
        self.forms.append(layouts)

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


def _least_demanding(form: Form) -> Form:
    """The form that is legal wherever another one of its schedule is."""
    return replace(form, context_kind="gather", expert_tensor=None)
