"""Evaluation of candidate engines as arrays, under every form of layout and every batch.

A form (`ServeForm`) is a layout without its mesh: how weights and KV cache are sharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.arrays import Num
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.steady_state import SteadyState, colocated, prefill_only
from shardwise.models import ModelConfig
from shardwise.search.given import Choices
from shardwise.search.serving.layouts import CandidateEngines
from shardwise.search.serving.legal import BATCH_GRID, batch_limits, forms, legal
from shardwise.strategy.serving_layout import ServeForm, ServeLayout, ServeLayouts
from shardwise.workload import Serve

# Placements of one mesh are compared at this batch. Their order hardly depends on the batch, as
# only their links differ.
PROBE_BATCH = 64
# Utilizations of a prefill engine to try: the higher it is, the longer prompts queue.
PREFILL_LOADS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBlock:
    """Engines of one form for one job, with the batches that fit.

    An operating point is an engine with a batch. An engine has one or more of them.

    Args:
        job: the workload, with its dtypes.
        engine_index: for each operating point, the index of its engine in `engines`.
        batch: for each operating point, the sequences that decode at once in one engine.
        steady: for each operating point, the means of one engine that both prefills and decodes.
        prefill_s: seconds of a prefill, queueing included, in an engine that only prefills: array
            of [len(PREFILL_LOADS), number of engines].
        prefills_per_s: prompts per second of such an engine; same shape.
    """

    job: Serve
    form: ServeForm
    rates: ServeRates
    engines: CandidateEngines
    engine_index: Num
    batch: Num
    steady: SteadyState
    prefill_s: Num
    prefills_per_s: Num

    def layout(self, row: int) -> ServeLayout:
        """The layout of the engine at index `row`."""
        return ServeLayout(**_form_fields(self.form), mesh=self.engines.meshes[row])


def blocks(
    config: ModelConfig,
    engines: CandidateEngines,
    options: Sequence[tuple[Serve, ServeRates]],
    fixed: Choices,
) -> list[EngineBlock]:
    """Evaluate all operating points that fit, in one block for each form and each job.

    Args:
        options: the job in each combination of dtypes, with the rates of the chip for it.
    """
    placed = best_placed(config, engines, *options[0], fixed)
    evaluated = []
    for form in forms(config, fixed):
        job, rates = options[0]
        rows = legal(config, form, placed.sizes, fixed, job.engine, rates.chip).nonzero()[0]
        if not len(rows):
            continue
        legal_engines = placed.take(rows)
        for job, rates in options:
            block = engine_block(config, form, legal_engines, job, rates)
            if block is not None:
                evaluated.append(block)
    return evaluated


def best_placed(
    config: ModelConfig, engines: CandidateEngines, job: Serve, rates: ServeRates, fixed: Choices
) -> CandidateEngines:
    """Keep one engine for each mesh on each machine: the placement with the fastest decoding."""
    import numpy as np

    seconds = np.zeros(len(engines))
    for form in (ServeForm(), ServeForm(weights="2d")):
        rows = legal(config, form, engines.sizes, fixed, job.engine, rates.chip).nonzero()[0]
        if len(rows):
            engine = _engine(config, form, engines.take(rows), rates)
            seconds[rows] = engine.decode(PROBE_BATCH, job.mean_context).step_s
    best: dict[tuple[int, object], int] = {}
    for row in np.argsort(seconds, kind="stable"):
        best.setdefault((int(engines.system_index[row]), engines.meshes[row]), int(row))
    return engines.take(np.array(sorted(best.values())))


def engine_block(
    config: ModelConfig,
    form: ServeForm,
    engines: CandidateEngines,
    job: Serve,
    rates: ServeRates,
) -> EngineBlock | None:
    """Evaluate the operating points of a form; None if no engine fits any of its batches."""
    import numpy as np

    unit, limit = batch_limits(config, form, engines.sizes, job, rates.chip, ideal=rates.ideal)
    limit = np.broadcast_to(limit, len(engines))
    if job.batch:
        engine_rows, batch = _shared_batch(job.batch, engines, unit, limit)
    else:
        engine_rows, batch = _grid_batches(unit, limit)
    if not len(engine_rows):
        return None
    used_rows, engine_index = np.unique(engine_rows, return_inverse=True)
    used = engines.take(used_rows)
    steady = colocated(_engine(config, form, used.take(engine_index), rates), job, batch)
    loads = np.array(PREFILL_LOADS)[:, None]
    prefills_per_s, prefill_s = prefill_only(_engine(config, form, used, rates), job, loads)
    return EngineBlock(
        job=job,
        form=form,
        rates=rates,
        engines=used,
        engine_index=engine_index,
        batch=batch,
        steady=steady,
        prefill_s=prefill_s,
        prefills_per_s=prefills_per_s,
    )


def _form_fields(form: ServeForm) -> dict[str, Any]:
    return {name: getattr(form, name) for name in ServeForm.__dataclass_fields__}


def _engine(
    config: ModelConfig, form: ServeForm, engines: CandidateEngines, rates: ServeRates
) -> Engine:
    layouts = ServeLayouts(**_form_fields(form), sizes=engines.sizes)
    return Engine(config=config, layout=layouts, costs=engines.costs, rates=rates)


def _grid_batches(unit: Num, limit: Num) -> tuple[Num, Num]:
    """Operating points of every engine at every batch of the grid, and at its largest batch.

    Args:
        unit: `batch_unit` of each engine.
        limit: largest batch of each engine.

    Returns:
        Index of the engine and batch, for each operating point.
    """
    import numpy as np

    batches = np.array(BATCH_GRID)[None, :] * unit[:, None]
    batches = np.concatenate([batches, limit[:, None]], axis=1)
    fits = batches <= limit[:, None]
    limit_in_grid = (batches[:, :-1] == limit[:, None]).any(axis=1)
    fits[:, -1] = (limit >= unit) & ~limit_in_grid
    row, column = fits.nonzero()
    return row, batches[row, column]


def _shared_batch(total: int, engines: CandidateEngines, unit: Num, limit: Num) -> tuple[Num, Num]:
    """Operating points of engines whose machine divides a batch of `total` evenly among them.

    The other arguments and the result are those of `_grid_batches`.
    """
    import numpy as np

    batch = total / engines.sizes["data"]
    fits = (batch == np.floor(batch)) & (batch % unit == 0) & (batch <= limit)
    row = fits.nonzero()[0]
    return row, batch[row]
