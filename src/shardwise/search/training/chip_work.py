"""What one chip computes and holds under many microbatches, wherever their meshes are placed.

Placements of a mesh differ in the time of collectives alone. A torus has dozens of them for one
mesh, so that a search evaluates compute and memory once for each mesh and microbatch size.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.arrays import Num
from shardwise.estimate.chip_memory import Memory, capacity_bytes
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.layout_step import training_program
from shardwise.estimate.training.memory.framework import planned_framework
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.estimate.training.memory.stages import LocalShapes
from shardwise.estimate.training.microbatch import MatmulSeconds, MicrobatchTime, compute_time
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.models import ModelConfig
from shardwise.ops.program import Step
from shardwise.search.training.cells import Cells
from shardwise.strategy.layout import Form
from shardwise.strategy.schedules import chunked
from shardwise.workload import Train

# Up to this number of rows, all rows are evaluated when some of them are asked for.
SHARED_ROWS = 1 << 12
SHARED_COMPUTE_ROWS = 1 << 14  # the same for compute, which few forms tell apart

ComputeKey = tuple[bool, int | None]  # whether full remat, expert_tensor


class ChipWork:
    """Compute and memory of one chip, for cells of different meshes or microbatches.

    The forms that it is asked for have the same sharding rules, except for `expert_tensor`.

    Args:
        cells: the cells; their placements do not matter.
        chunks: for each cell, the chunks of layers on a stage of a chunked schedule.
        parent: the work from which the cells were taken, and their rows in it.
        matmul_s: cache of the time of matmuls, shared by works of the same cells.
    """

    def __init__(
        self,
        config: ModelConfig,
        job: Train,
        rates: Rates,
        cells: Cells,
        chunks: Num = 1,
        parent: tuple[ChipWork, Num] | None = None,
        matmul_s: MatmulSeconds | None = None,
    ) -> None:
        self.config = config
        self.job = job
        self.rates = rates
        self.cells = cells
        self.chunks = chunks
        self.parent = parent
        self._matmul_s: MatmulSeconds = {} if matmul_s is None else matmul_s
        self._compute: dict[ComputeKey, MicrobatchTime] = {}
        self._programs: dict[ComputeKey, Step] = {}
        self._shapes: dict[int | None, LocalShapes] = {}
        self._fits_and_bytes: dict[Form, tuple[Num, Num]] = {}
        self._framework = planned_framework(rates.chip.kind)

    def take(self, rows: Num, chunks: Num) -> ChipWork:
        """The work of the cells at the indices `rows`."""
        cells = self.cells.take(rows)
        return ChipWork(self.config, self.job, self.rates, cells, chunks, parent=(self, rows))

    def compute(self, form: Form) -> MicrobatchTime:
        """Time of one microbatch without collectives, for each cell."""
        key = (form.full_remat, form.expert_tensor)
        if key not in self._compute:
            self._compute[key] = self._inherited(form, key) or self._evaluated(form)
        return self._compute[key]

    def _inherited(self, form: Form, key: ComputeKey) -> MicrobatchTime | None:
        """The time that the parent has evaluated, or can for little more; None if there is none."""
        if self.parent is None:
            return None
        parent, rows = self.parent
        if key not in parent._compute and len(parent.cells) > SHARED_COMPUTE_ROWS:
            return None
        return parent.compute(form).take(rows)

    def priced(self, form: Form) -> PricedLayout:
        """The layouts of all cells under a form, with what prices their items."""
        return self.cells.priced(self.config, self.rates, form, self.chunks)

    def _evaluated(self, form: Form) -> MicrobatchTime:
        return compute_time(self.priced(form), self.program(form), self._matmul_s)

    def fits_and_bytes(self, form: Form) -> tuple[Num, Num]:
        """(whether it fits in memory, bytes of memory), for each cell."""
        if not self._framework.blocked_query_gradients:
            # No kind of context needs more than another.
            form = replace(form, context_kind="gather")
        if form not in self._fits_and_bytes:
            self._fits_and_bytes[form] = self._evaluated_memory(form)
        return self._fits_and_bytes[form]

    def _evaluated_memory(self, form: Form) -> tuple[Num, Num]:
        # The parent has other chunks of layers.
        if self.parent and not chunked(form.schedule):
            parent, rows = self.parent
            if len(parent.cells) <= SHARED_ROWS:
                fits, n_bytes = parent.fits_and_bytes(form)
                return fits[rows], n_bytes[rows]
        memory = self.memory(form)
        return memory.fits, memory.total

    def memory(self, form: Form) -> Memory:
        """Peak memory of a chip, for each cell."""
        layouts = self.cells.layouts(form, self.chunks)
        if form.expert_tensor not in self._shapes:
            program = self.program(replace(form, recomputed=()))  # any remat has the same shapes
            shapes = LocalShapes(self.config, self.job, program, layouts)
            self._shapes[form.expert_tensor] = shapes
        shapes = self._shapes[form.expert_tensor]
        capacity = capacity_bytes(self.rates.chip)
        return step_memory(
            self.config, self.job, shapes.step, layouts, capacity, self._framework, shapes
        )

    def program(self, form: Form) -> Step:
        """The matmuls and collectives of one microbatch of each cell."""
        key = (form.full_remat, form.expert_tensor)
        if key not in self._programs:
            layouts = self.cells.layouts(form, self.chunks)
            self._programs[key] = training_program(self.config, self.job, layouts)
        return self._programs[key]
