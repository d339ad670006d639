"""The time of a training step, from what one microbatch takes.

    t    = forward + backward + recomputed work of one microbatch on one stage
    step = m t + bubble + the head on the last stage + sums of gradients + update + what of the
           collectives nothing hides

m microbatches run through p stages of v chunks each (Megatron, arXiv 2104.04473). Everything takes
numbers or arrays over layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.collective_cost import Prices
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.extra_traffic import between_stages, sends_again
from shardwise.estimate.training.gradient_sync import Sums, gradient_sums, update_s
from shardwise.estimate.training.microbatch import BACKWARD, Passes
from shardwise.models import ModelConfig
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.schedules import Times, find
from shardwise.strategy.stages import Stages, stages
from shardwise.vocabulary import NO_SCHEDULE

TP_CHUNKS = 4  # pieces of an overlapped product (Transformer Engine's user buffers)
TURNS = ("fsdp", "expert", "context")  # roles that hide beside the layers, one after the other
TINY = 1e-30  # seconds: keeps 0 / 0 apart
LAST_BUCKET = 0.1  # gradients of the first layers come last: nothing is left to hide their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step by what spends them; the sum is the step.

    Args:
        compute_s: matmuls, attention and element-wise work of all microbatches on the chip.
        head_s: embedding and unembedding, which lengthen the longest stage.
        traffic_s: collectives by role, none of them hidden.
        comm_s: what of them nothing hides.
        bubble_s: idle time of the pipeline.
        update_s: the optimizer.
    """

    compute_s: Num
    head_s: Num
    traffic_s: Mapping[str, Num]
    comm_s: Mapping[str, Num]
    bubble_s: Num
    update_s: Num

    @property
    def on_chip_s(self) -> Num:
        """Everything but communication."""
        return self.compute_s + self.head_s + self.bubble_s + self.update_s

    @property
    def step_s(self) -> Num:
        """The expected step."""
        return self.on_chip_s + sum(self.comm_s.values())

    @property
    def lower_s(self) -> Num:
        """The step with all communication hidden that can be: beside everything else."""
        return maximum(self.on_chip_s, 0.0, *self.traffic_s.values())

    @property
    def upper_s(self) -> Num:
        """The step with no communication hidden."""
        return self.on_chip_s + sum(self.traffic_s.values())


def step_time(
    config: ModelConfig, split: Layout | Layouts, one: Passes, prices: Prices, rates: Rates
) -> StepTime:
    """One step under the layouts of a split, from the passes of one microbatch."""
    m, stage = split.n_microbatches, stages(config.n_layers, split)
    forward = (one.layers["forward"] + one.elementwise) * stage.share
    backward = (one.layers["backward"] + BACKWARD * one.elementwise) * stage.share
    again = _again(config, split, one) * stage.share
    layers = forward + backward + again
    traffic = {
        role: m * (one.traffic.get(role, 0.0) * stage.share + one.ends.get(role, 0.0))
        for role in {**one.traffic, **one.ends}
    }
    if sends_again(split):
        for role, seconds in one.resent.items():
            traffic[role] = traffic.get(role, 0.0) + m * seconds * stage.share
    if split.schedule != NO_SCHEDULE:
        sends = between_stages(config, split, stage, rates)
        traffic["pipe"] = m * sum(sent.time_s(prices, rates, split.sizes) for sent in sends)
    if "activations" in split.offload:
        of = minimum(1.0, split.offload_layers / stage.held) if split.offload_layers else 1.0
        traffic["host"] = m * one.offloaded * stage.share * of
    sums = gradient_sums(config, split, stage, prices, rates)
    head = _ends(config, split, one, stage, layers, rates)
    beside = m * layers + head  # all that the busiest stage computes
    exposed = _exposed(config, split, one, stage, traffic, beside, rates)
    waited: Num = 0.0
    if split.schedule != NO_SCHEDULE:  # on the stages without a head, which the bubble is made of
        waited = sum(_exposed(config, split, one, stage, traffic, m * layers, rates).values()) / m
    if "norms" in split.recomputed and "tensor" in traffic:
        # Beside the product of the gradient of the same input (arXiv 2205.05198, section 4.2.2).
        traffic["tensor"] = traffic["tensor"] + m * one.regather * stage.share
    traffic["data"] = sums.all_s
    free = _free(exposed, traffic, beside)
    exposed["data"] = _exposed_sums(split, sums, free * layers, free * backward)
    return StepTime(
        compute_s=m * layers,
        head_s=head,
        traffic_s=traffic,
        # What runs beside a product takes a part of the chip from it.
        comm_s={r: t + rates.cal.contention * (traffic[r] - t) for r, t in exposed.items()},
        bubble_s=_bubble(split, stage, forward, backward + again, waited),
        update_s=update_s(config, split, stage, rates),
    )


def _again(config: ModelConfig, split: Layout | Layouts, one: Passes) -> Num:
    """What remat runs a second time in all layers."""
    if not split.recomputed:
        return 0.0
    if split.full_remat:
        seconds = one.layers["remat"] + one.elementwise
    else:
        seconds = sum((one.parts.get(part, 0.0) for part in split.recomputed), 0.0)
        if {"norms", "activation"} & {*split.recomputed}:
            seconds = seconds + one.elementwise
    layers = split.remat_layers
    return seconds * min(1.0, layers / config.n_layers) if layers else seconds


def _ends(
    config: ModelConfig,
    split: Layout | Layouts,
    one: Passes,
    stage: Stages,
    layers: Num,
    rates: Rates,
) -> Num:
    """By how much the ends of the model lengthen the step.

    Where layers do not divide, the last stage holds the rest and the head (Megatron-LM's
    account_for_loss_in_pipeline_split, DeepSpeed's "type:transformer|embedding").
    """
    m, p = split.n_microbatches, split.sizes["pipe"]
    each = layers / stage.layers
    last = one.last
    if rates.extras.mtp_layers:  # joins two residuals, has a layer and a pass through the head
        join_s = 3 * 2 * _tokens(split, rates) * 2 * config.d_model**2 / rates.matmul_flops_per_s
        # Its layer has both blocks, also where those of the model have one.
        blocks = 1 if config.main_layer.has_both else 2
        last = last + rates.extras.mtp_layers * (last + blocks * each + join_s)
    if split.schedule == NO_SCHEDULE:
        return m * (one.first + last)
    schedule = find(split.schedule)
    if schedule.ends_meet:
        return schedule.ends(p, m, stage.chunks, one.first, last)
    rest = maximum(config.n_layers - stage.held * (p - 1), 0)
    first = where(stage.spare > 0, 0.0, one.first)
    beside = last - (stage.layers - rest * stage.layers / stage.held) * each
    longest = m * maximum(maximum(first, beside), 0.0)
    return where(p > 1, longest, m * (one.first + last))


def _tokens(split: Layout | Layouts, rates: Rates) -> Num:
    """Of one microbatch on one chip."""
    shared = split.sizes["context"] * split.sizes["tensor"]
    return split.micro_batch * rates.job.seq / shared


def _bubble(split: Layout | Layouts, stage: Stages, forward: Num, backward: Num, comm: Num) -> Num:
    """Idle seconds of the busiest stage under the layout's schedule.

    A schedule that these numbers do not fit (a remainder of microbatches) is taken as its
    whole rounds: (p - 1) / v of a microbatch.
    """
    if split.schedule == NO_SCHEDULE:
        return 0.0
    p, m, v = split.sizes["pipe"], split.n_microbatches, stage.chunks
    # What a stage does for a microbatch is `passes` chunks of work.
    busy = (forward + backward + comm) / (forward + backward) / stage.passes
    times = Times(f=forward * busy, b=backward * busy / 2, w=backward * busy / 2)
    schedule = find(split.schedule)
    bubble = schedule.bubble(p, m, v, times)
    return where(schedule.legal(p, m, v), bubble, (p - 1) * times.one)


def _exposed(
    config: ModelConfig,
    split: Layout | Layouts,
    one: Passes,
    stage: Stages,
    traffic: Mapping[str, Num],
    compute: Num,
    rates: Rates,
) -> dict[str, Num]:
    """What is left of the traffic where the layout overlaps it."""
    found, overlap = dict(traffic), split.overlap
    if "tensor" in found and "tp_comm" in overlap:
        # A chunk of a product runs beside the transfer of the next; the first has nothing.
        whole = found["tensor"]
        found["tensor"] = maximum(
            whole / minimum(TP_CHUNKS, split.sizes["tensor"]), whole - compute
        )
    if "context" in found and split.context_kind == "ring":
        # The next keys and values arrive while attention runs over those that are here.
        hidden = split.n_microbatches * one.attention * stage.share
        found["context"] = maximum(found["context"] - hidden, 0.0)
    if "host" in found:
        found["host"] = maximum(found["host"] - compute, 0.0)
    if "fsdp" in found:
        # Gathers run one layer ahead: the first layer's is waited for.
        first = found["fsdp"] / config.n_layers
        found["fsdp"] = maximum(first, found["fsdp"] - compute)
        if not rates.kernels.prefetch:  # one of three: weights twice, gradients once
            found["fsdp"] = maximum(found["fsdp"], traffic["fsdp"] / 3)
    if split.schedule != NO_SCHEDULE and find(split.schedule).pairs:
        # In pairs, what one direction sends runs beside what the other computes.
        m = split.n_microbatches
        alone = minimum(1.0, (split.sizes["pipe"] + 1) / m)
        for role in [r for r in ("expert", "pipe") if r in found]:
            found[role] = maximum(found[role] * alone, found[role] - compute)
    elif "expert" in found and "expert_all_to_all" in overlap:
        # Beside the other half of the microbatch.
        found["expert"] = maximum(found["expert"] / 2, found["expert"] - compute)
    _take_turns(found, traffic, compute)
    if "pipe" in found and "pipe_p2p" in overlap:
        # Between the first and the last microbatch a stage has others to work on.
        filling = (split.sizes["pipe"] - 1) / (split.n_microbatches * stage.passes)
        found["pipe"] = found["pipe"] * minimum(1.0, filling)
    return found


def _take_turns(found: dict[str, Num], traffic: Mapping[str, Num], compute: Num) -> None:
    """Collectives that run beside the same computation share its time: what is too much is waited
    for, by each role as much as it hides."""
    hidden = {r: traffic[r] - found[r] for r in TURNS if r in found}
    total = sum(hidden.values(), 0.0)
    late = maximum(total - compute, 0.0) / maximum(total, TINY)
    for role, seconds in hidden.items():
        found[role] = found[role] + late * seconds


def _free(found: Mapping[str, Num], traffic: Mapping[str, Num], compute: Num) -> Num:
    """Share of the computation that hides nothing yet."""
    hidden = sum((traffic[r] - found[r] for r in TURNS if r in found), 0.0)
    return maximum(1.0 - hidden / maximum(compute, TINY), 0.0)


def _exposed_sums(split: Layout | Layouts, sums: Sums, layers: Num, backward: Num) -> Num:
    """Sums run beside the backward pass before them, gathers beside the next forward pass."""
    beside = backward if "grad_reduce" in split.overlap else 0.0
    before = layers - backward if "param_gather" in split.overlap else 0.0
    late = sums.times * maximum(sums.reduce_s - beside, 0.0)
    late = late + maximum(sums.gather_s - before, 0.0)
    return maximum((sums.reduce_s + sums.gather_s) * LAST_BUCKET, late)
