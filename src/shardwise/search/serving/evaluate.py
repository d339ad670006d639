"""Evaluation of candidate engines as arrays, under every form of layout and every batch.

A form (`ServeForm`) is a layout without its mesh: how weights and KV cache are sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.arrays import Num, maximum
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.memory import max_batch
from shardwise.estimate.serving.steady_state import SteadyState, colocated, prefill_only
from shardwise.models import Attention, ModelConfig
from shardwise.search.given import Choices
from shardwise.search.serving.layouts import CandidateEngines
from shardwise.strategy.serving_layout import ServeForm, ServeLayout, ServeLayouts
from shardwise.vocabulary import KV_SPLITS
from shardwise.workload import Serve

# Batches of an engine to try, in units of `batch_unit`: powers of two and 1.5 times these.
BATCH_GRID = [1, *(n for k in range(1, 17) for n in (2**k, 3 * 2 ** (k - 1)))]
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


def forms(config: ModelConfig, fixed: Choices) -> Iterator[ServeForm]:
    """The forms to search.

    "gathered" weights (FSDP), which rarely pay in serving, are among them only if the user fixed
    them.
    """
    weight_layouts = ["stationary", "2d"]
    kv_splits = list(KV_SPLITS)
    expert_tensors: list[int | None] = [None]
    if config.is_moe:
        expert_tensors.append(1)
    if "weights" in fixed:
        weight_layouts = [str(fixed["weights"])]
    if "kv" in fixed:
        kv_splits = [str(fixed["kv"])]
    if "expert_tensor" in fixed:
        expert_tensors = [int(fixed["expert_tensor"])]
    for weights in weight_layouts:
        for kv in kv_splits:
            for expert_tensor in expert_tensors:
                yield ServeForm(weights=weights, kv=kv, expert_tensor=expert_tensor)


def legal(config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num], fixed: Choices) -> Num:
    """Whether each engine can use a form.

    Args:
        sizes: mesh role -> chips of each engine.
        fixed: settings that the user fixed.
    """
    is_legal = sizes["fsdp"] > 1
    if form.weights == "stationary":
        is_legal = ~is_legal
    # A search combines "2d" weights with neither pipe nor context, unless the user fixed fsdp.
    if form.weights == "2d" and "fsdp" not in fixed:
        is_legal = is_legal & (sizes["pipe"] * sizes["context"] == 1)
    if form.kv != "copied" and "kv" not in fixed:
        is_legal = is_legal & (sizes["tensor"] > min_kv_heads(config))
    if form.expert_tensor:
        is_legal = is_legal & (sizes["tensor"] > 1) & (sizes["tensor"] % form.expert_tensor == 0)
    return is_legal


def min_kv_heads(config: ModelConfig) -> int:
    """The smallest number of KV heads of any layer; the latent cache of MLA counts as one head."""
    return min((_kv_heads(attention) for attention, _ in config.attentions), default=1)


def _kv_heads(attention: Attention) -> int:
    if attention.mla:
        return 1
    return attention.n_kv_heads


def batch_unit(config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num]) -> Num:
    """The smallest batch of an engine, of which every batch is a multiple.

    It has one sequence for each shard of the batch and each stage of the pipeline.
    """
    unit = sizes["expert"] * sizes["pipe"]
    if form.weights == "gathered":
        unit = unit * sizes["fsdp"]
    if form.kv == "batch":
        unit = unit * maximum(1, sizes["tensor"] // min_kv_heads(config))
    return unit


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
        rows = legal(config, form, placed.sizes, fixed).nonzero()[0]
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
        rows = legal(config, form, engines.sizes, fixed).nonzero()[0]
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

    capacity = rates.chip.need("hbm_bytes")
    unit = batch_unit(config, form, engines.sizes)
    limit = max_batch(config, form, engines.sizes, job, capacity, ideal=rates.ideal)
    limit = np.minimum(np.floor(limit / unit) * unit, BATCH_GRID[-1] * unit)
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
