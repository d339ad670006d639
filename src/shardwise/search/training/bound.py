"""Lower bounds on all forms of a cell, by which a search leaves cells out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.training.gradient_sync import update_s
from shardwise.estimate.training.microbatch import MicrobatchTime
from shardwise.estimate.training.step import step_time
from shardwise.models import ModelConfig
from shardwise.search.given import Value
from shardwise.search.training.cells import Cells
from shardwise.search.training.evaluate import Block
from shardwise.search.training.forms import (
    CACHED_LISTS,
    MAX_CHUNKS,
    Group,
    WithoutRemat,
    forms_below_1f1b,
    least_memory_form,
    without_remat,
)
from shardwise.strategy.layout import Form
from shardwise.strategy.schedules import Times, chunked, find
from shardwise.strategy.stages import MIN_FILLED_SHARE
from shardwise.vocabulary import NO_SCHEDULE
from shardwise.workload import Train

# Settings fixed by the user that the bounds keep too.
KEPT = ("loss_chunks", "remat", "zero", "expert_tensor", "tensor")


def bound(block: Block) -> tuple[Num, Num]:
    """(whether it fits under no form, lower bound of its step seconds), for each cell."""
    return ~may_fit(block), least_seconds(block)


def may_fit(block: Block) -> Num:
    """Whether each cell may fit under any form.

    A cell needs the least memory under 1F1B, full remat and the highest ZeRO stage, or under a
    schedule that declares to need less than 1F1B.
    """
    import numpy as np

    fits = np.zeros(len(block.work.cells), bool)
    for forms in _forms_by_expert_tensor(block):
        for form in [least_memory_form(_plain(forms)), *forms_below_1f1b(forms)]:
            fits = fits | block.work.fits_and_bytes(form)[0]
    return fits[block.work_rows]


def least_seconds(block: Block) -> Num:
    """Lower bound of each cell's step seconds.

    It is the time of 1F1B without remat and without the collectives of `expert` and `context`. In a
    pipeline, sends between stages are left out too, and embedding, head and bubble count as little
    as under any schedule.
    """
    import numpy as np

    seconds = np.full(len(block.cells), np.inf)
    for forms in _forms_by_expert_tensor(block):
        seconds = minimum(seconds, _least_seconds(block, forms))
    return seconds


def least_compute_seconds(block: Block) -> Num:
    """Lower bound of each cell's step seconds on any placement: the time without collectives.

    Collectives only add to a step: its time is that on the chip and what they expose, which is
    never negative. The rest is as in `least_seconds`, and so at most its bound.
    """
    import numpy as np

    seconds = np.full(len(block.work.cells), np.inf)
    for forms in _forms_by_expert_tensor(block):
        seconds = minimum(seconds, _least_compute_seconds(block, forms))
    return seconds[block.work_rows]


def _least_compute_seconds(block: Block, forms: Sequence[Form]) -> Num:
    """Lower bound for each row of `work` of the step seconds without collectives of any form."""
    work = block.work
    form = _plain(forms)[0]
    priced = work.priced(form)
    microbatch = work.compute(form)
    layers_s = microbatch.layers["forward"] + microbatch.layers["backward"]
    work_s = work.cells.n_microbatches * layers_s * priced.stage.share
    if block.group.pipelined:
        work_s = maximum(work_s, _mean_stage_s(work.cells, microbatch))
        work_s = work_s + _least_bubble_s(block.config, work.cells, microbatch, _schedules(forms))
    else:
        ends_s = microbatch.embedding + microbatch.unembedding
        work_s = work_s + work.cells.n_microbatches * ends_s
    return work_s + update_s(priced)


def _forms_by_expert_tensor(block: Block) -> tuple[list[Form], ...]:
    """Lists of the forms of a block that have the same `expert_tensor`.

    Their schedules and kinds of context are not limited to those that the user fixed: a bound is
    that of the plain ones.
    """
    kept = tuple((name, value) for name, value in block.fixed.items() if name in KEPT)
    return _form_lists(block.group, block.config, block.job, kept)


@functools.lru_cache(maxsize=CACHED_LISTS)
def _form_lists(
    group: Group, config: ModelConfig, job: Train, kept: tuple[tuple[str, Value], ...]
) -> tuple[list[Form], ...]:
    lists: dict[int | None, list[Form]] = {}
    for form in group.forms(config, job, dict(kept)):
        lists.setdefault(form.expert_tensor, []).append(form)
    return tuple(lists.values())


def most_left_bytes(block: Block) -> float:
    """Bytes that the roomiest strategy leaves on its fullest chip, beside what is kept free.

    Negative if it does not fit, minus infinity if none is legal. Only the forms that need the least
    memory are evaluated, one for each schedule, kind of context and split of experts. Schedules
    with several chunks need more than 1F1B.
    """
    import numpy as np

    forms_by_key: dict[WithoutRemat, list[Form]] = {}
    for form in block.group.forms(block.config, block.job, block.fixed):
        if not chunked(form.schedule):
            forms_by_key.setdefault(without_remat(form), []).append(form)
    most = -np.inf
    for form in map(least_memory_form, forms_by_key.values()):
        free_bytes = np.where(block.is_legal(form), block.work.memory(form).left, -np.inf)
        most = max(most, float(free_bytes.max()))
    return most


def _least_seconds(block: Block, forms: Sequence[Form]) -> Num:
    """Lower bound of the step seconds of any of the forms, which have the same `expert_tensor`."""
    priced = block.priced(_plain(forms)[0])
    if block.group.pipelined:  # another schedule may leave room for MTP layers on the last stage
        job = replace(priced.job, mtp_layers=0)
        priced = replace(priced, rates=replace(priced.rates, job=job))
    microbatch = block.microbatch(_plain(forms)[0])
    traffic = dict(microbatch.traffic)
    for role in ("expert", "context"):
        traffic.pop(role, None)
    time = step_time(priced, replace(microbatch, traffic=traffic))
    if not block.group.pipelined:
        return time.step_s
    exposed = sum(seconds for role, seconds in time.comm_s.items() if role != "pipe")
    work_s = maximum(time.compute_s, _mean_stage_s(block.cells, microbatch))
    bubble_s = _least_bubble_s(block.config, block.cells, microbatch, _schedules(forms))
    return work_s + bubble_s + time.update_s + exposed


def _schedules(forms: Sequence[Form]) -> tuple[str, ...]:
    """The distinct schedules of the forms."""
    return tuple(dict.fromkeys(form.schedule for form in forms))


def _plain(forms: Sequence[Form]) -> list[Form]:
    """The forms without a pipeline, or with the plain one."""
    return [form for form in forms if form.schedule in (NO_SCHEDULE, "1f1b")]


def _mean_stage_s(cells: Cells, microbatch: MicrobatchTime) -> Num:
    """Seconds of a step that a stage works on average, which the busiest one does at least."""
    layers_s = microbatch.layers["forward"] + microbatch.layers["backward"]
    all_s = layers_s + microbatch.unembedding
    return cells.n_microbatches * all_s / cells.sizes["pipe"]


def _least_bubble_s(
    config: ModelConfig, cells: Cells, microbatch: MicrobatchTime, schedules: Sequence[str]
) -> Num:
    """Least idle seconds of the busiest stage under any of the schedules that is legal."""
    pipe = cells.sizes["pipe"]
    bubble_s: Num = float("inf")
    for name in schedules:
        schedule = find(name)
        # The most chunks whose places in the stages `MIN_FILLED_SHARE` of the layers can fill.
        max_chunks = minimum(MAX_CHUNKS, config.n_layers / (MIN_FILLED_SHARE * pipe))
        chunks = schedule.chunks or max_chunks
        share = schedule.weight_copies / (pipe * chunks)
        backward = microbatch.layers["backward"] * share
        times = Times(f=microbatch.layers["forward"] * share, b=backward / 2, w=backward / 2)
        idle_s = schedule.bubble(pipe, cells.n_microbatches, chunks, times)
        legal = schedule.legal(pipe, cells.n_microbatches, chunks)
        bubble_s = minimum(bubble_s, where(legal, idle_s, float("inf")))
    return bubble_s
