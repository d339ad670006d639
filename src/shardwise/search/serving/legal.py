"""The forms that engines may have, and the batches that fit in them.

A form (`ServeForm`) is a layout without its mesh: how weights and KV cache are sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwise.arrays import Num, floor, maximum, minimum
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.serving.memory import max_batch
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.search.given import Choices
from shardwise.search.serving.engine_limits import is_run
from shardwise.search.serving.runtime_limits import min_kv_heads, served
from shardwise.strategy.serving_layout import ServeForm
from shardwise.vocabulary import KV_SPLITS
from shardwise.workload import Serve

# Batches of an engine to try, in units of `batch_unit`: powers of two and 1.5 times these.
BATCH_GRID = [1, *(n for k in range(1, 17) for n in (2**k, 3 * 2 ** (k - 1)))]


def forms(config: ModelConfig, fixed: Choices) -> Iterator[ServeForm]:
    """The forms to search.

    "gathered" weights (FSDP), which rarely pay in serving, are among them only if the user fixed
    them.
    """
    weight_layouts = ["stationary", "2d"]
    kv_splits = list(KV_SPLITS)
    expert_tensors: list[int | None] = [None]
    if config.is_moe:
        # First, to be that of layouts that are equal at peak rates: chips with other experts copy
        # the tokens of their own alone, which only expected rates count.
        expert_tensors.insert(0, 1)
    if "weights" in fixed:
        weight_layouts = [str(fixed["weights"])]
    if "kv" in fixed:
        kv_splits = [str(fixed["kv"])]
    if "expert_tensor" in fixed:
        shards = int(fixed["expert_tensor"])
        expert_tensors = [None if shards == fixed.get("tensor") else shards]
    for weights in weight_layouts:
        for kv in kv_splits:
            for expert_tensor in expert_tensors:
                yield ServeForm(weights=weights, kv=kv, expert_tensor=expert_tensor)


def legal(
    config: ModelConfig,
    form: ServeForm,
    sizes: Mapping[str, Num],
    fixed: Choices,
    engine: str,
    chip: Chip,
) -> Num:
    """Whether each engine can use a form.

    Args:
        sizes: mesh role -> chips of each engine.
        fixed: settings that the user fixed.
        engine: the software that runs the engines.
    """
    is_legal = (sizes["fsdp"] > 1) == (form.weights != "stationary")
    # A search combines "2d" weights with neither pipe nor context, unless the user fixed fsdp.
    if form.weights == "2d" and "fsdp" not in fixed:
        is_legal = is_legal & (sizes["pipe"] * sizes["context"] == 1)
    if form.kv != "copied" and "kv" not in fixed:
        is_legal = is_legal & (sizes["tensor"] > min_kv_heads(config))
    if not {"fsdp", "pipe", "context", "expert", "expert_tensor"} & {*fixed}:
        is_legal = is_legal & served(config, form, sizes)
    choices = {*fixed, "weights"} if "fsdp" in fixed else {*fixed}
    is_legal = is_legal & is_run(engine, config, chip, form, sizes, choices)
    if form.expert_tensor:
        is_legal = is_legal & (sizes["tensor"] > 1) & (sizes["tensor"] % form.expert_tensor == 0)
    return is_legal


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


def batch_limits(
    config: ModelConfig,
    form: ServeForm,
    sizes: Mapping[str, Num],
    job: Serve,
    chip: Chip,
    *,
    ideal: bool,
) -> tuple[Num, Num]:
    """(`batch_unit`, largest batch that fits) of each engine; 0 where not one unit fits."""
    unit = batch_unit(config, form, sizes)
    limit = max_batch(config, form, sizes, job, capacity_bytes(chip), ideal=ideal)
    return unit, minimum(floor(limit / unit) * unit, BATCH_GRID[-1] * unit)
