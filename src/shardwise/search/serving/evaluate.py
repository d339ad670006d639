"""Engines under all forms with all batches, as arrays: latency, throughput, what fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.memory import max_batch
from shardwise.estimate.serving.steady_state import SteadyState, colocated, prefill_only
from shardwise.models import Attention, ModelConfig
from shardwise.search.given import Choices
from shardwise.search.serving.layouts import Sites
from shardwise.strategy.serving_layout import ServeForm, ServeLayout, ServeLayouts
from shardwise.vocabulary import KV_SPLITS
from shardwise.workload import Serve

# Sequences of an engine that are tried: powers of two and their halves between, and what fits.
GRID = [n for k in range(17) for n in (2**k, 3 * 2 ** (k - 1)) if n == int(n)]
PROBE = 64  # sequences at which placements of one mesh are compared: their order is the links'
# ServingEfficiency of its time that an engine of prompts may read: more means longer waiting.
BUSY = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Engines of one form in one dtype, and the batches of each that fit.

    Args:
        row: of each operating point, its engine among `sites`.
        batch: sequences that decode at once in one engine.
        steady: means of one engine that reads prompts and generates.
        busy, reading_s, reads_per_s: of engines that only read prompts: share of the time, seconds
            to read a prompt with waiting, prompts per second; one row for each of `BUSY`.
    """

    job: Serve
    form: ServeForm
    rates: ServeRates
    sites: Sites
    row: Num
    batch: Num
    steady: SteadyState
    reading_s: Num
    reads_per_s: Num

    def layout(self, row: int) -> ServeLayout:
        """The layout of one engine."""
        words = {name: getattr(self.form, name) for name in ServeForm.__dataclass_fields__}
        return ServeLayout(**words, mesh=self.sites.meshes[row])


def forms(config: ModelConfig, fixed: Choices) -> Iterator[ServeForm]:
    """Every form; weights are gathered only when it is asked for: a mistake in serving."""
    weights = (fixed["weights"],) if "weights" in fixed else ("stationary", "2d")
    kv = (fixed["kv"],) if "kv" in fixed else KV_SPLITS
    experts: tuple[int | None, ...] = (None, 1) if config.is_moe else (None,)
    if "expert_tensor" in fixed:
        experts = (int(fixed["expert_tensor"]),)
    for w in weights:
        for k in kv:
            for e in experts:
                yield ServeForm(weights=str(w), kv=str(k), expert_tensor=e)


def legal(config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num], fixed: Choices) -> Num:
    """Which engines a form makes sense for."""
    split = sizes["fsdp"] > 1
    good = split if form.weights != "stationary" else ~split
    if form.weights == "2d" and "fsdp" not in fixed:  # one engine wider than tensor alone splits
        good = good & (sizes["pipe"] * sizes["context"] == 1)
    if form.kv != "copied" and "kv" not in fixed:
        good = good & (sizes["tensor"] > fewest_heads(config))
    if form.expert_tensor:
        good = good & (sizes["tensor"] > 1) & (sizes["tensor"] % form.expert_tensor == 0)
    return good


def fewest_heads(config: ModelConfig) -> int:
    """Ways that caches can be split by heads in every layer."""
    return min((_heads(a) for a, _ in config.attentions), default=1)


def _heads(a: Attention) -> int:
    return 1 if a.mla else a.n_kv_heads


def whole(config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num]) -> Num:
    """Sequences of which an engine needs a multiple, so that each part has whole ones."""
    from shardwise.arrays import maximum

    unit = sizes["expert"] * sizes["pipe"] * (sizes["fsdp"] if form.weights == "gathered" else 1)
    if form.kv == "batch":
        unit = unit * maximum(1, sizes["tensor"] // fewest_heads(config))
    return unit


def blocks(
    config: ModelConfig, every: Sites, options: Sequence[tuple[Serve, ServeRates]], fixed: Choices
) -> list[Block]:
    """All operating points that fit, by form and dtype."""
    chosen = best_placed(config, every, *options[0], fixed)
    found = []
    for form in forms(config, fixed):
        rows = legal(config, form, chosen.sizes, fixed).nonzero()[0]
        if len(rows):
            here = chosen.take(rows)
            found += [b for o in options if (b := block(config, form, here, *o)) is not None]
    return found


def best_placed(
    config: ModelConfig, every: Sites, job: Serve, rates: ServeRates, fixed: Choices
) -> Sites:
    """Of each mesh on each machine, the placement where a decoding pass is shortest."""
    import numpy as np

    seconds = np.zeros(len(every))
    for form in (ServeForm(), ServeForm(weights="2d")):
        rows = legal(config, form, every.sizes, fixed).nonzero()[0]
        if len(rows):
            engine = _engine(config, form, every.take(rows), rates)
            seconds[rows] = engine.decode(PROBE, job.mean_context).step_s
    best: dict[tuple[int, object], int] = {}
    for i in np.argsort(seconds, kind="stable"):
        best.setdefault((int(every.system[i]), every.meshes[i]), int(i))
    return every.take(np.array(sorted(best.values())))


def block(
    config: ModelConfig, form: ServeForm, here: Sites, job: Serve, rates: ServeRates
) -> Block | None:
    """The operating points of a form, or None where not one sequence fits."""
    import numpy as np

    capacity = rates.chip.need("hbm_bytes")
    unit = whole(config, form, here.sizes)
    most = max_batch(config, form, here.sizes, job, capacity, ideal=rates.ideal)
    most = np.broadcast_to(np.minimum(np.floor(most / unit) * unit, GRID[-1] * unit), len(here))
    row, batch = _given(job, here, unit, most) if job.batch else _grid(unit, most)
    if not len(row):
        return None
    there, index = np.unique(row, return_inverse=True)
    here = here.take(there)
    points = here.take(index)
    steady = colocated(_engine(config, form, points, rates), job, batch)
    busy = np.array(BUSY)[:, None]
    reads, seconds = prefill_only(_engine(config, form, here, rates), job, busy)
    return Block(
        job=job,
        form=form,
        rates=rates,
        sites=here,
        row=index,
        batch=batch,
        steady=steady,
        reading_s=seconds,
        reads_per_s=reads,
    )


def _engine(config: ModelConfig, form: ServeForm, here: Sites, rates: ServeRates) -> Engine:
    words = {name: getattr(form, name) for name in ServeForm.__dataclass_fields__}
    layouts = ServeLayouts(**words, sizes=here.sizes)
    return Engine(config=config, layout=layouts, costs=here.costs, rates=rates)


def _grid(unit: Num, most: Num) -> tuple[Num, Num]:
    """(engine, batch) of every batch of the grid that fits, and of the largest."""
    import numpy as np

    batches = np.array(GRID)[None, :] * unit[:, None]
    batches = np.concatenate([batches, most[:, None]], axis=1)
    fits = batches <= most[:, None]
    fits[:, -1] = (most >= unit) & ~(batches[:, :-1] == most[:, None]).any(axis=1)
    row, column = fits.nonzero()
    return row, batches[row, column]


def _given(job: Serve, here: Sites, unit: Num, most: Num) -> tuple[Num, Num]:
    """(engine, batch) where the engines of a machine share `job.batch` evenly."""
    import numpy as np

    each = (job.batch or 0) / here.sizes["data"]
    fits = (each == np.floor(each)) & (each % unit == 0) & (each <= most)
    row = fits.nonzero()[0]
    return row, each[row]
