"""The time of a training step, from what one microbatch takes.

    t    = forward + backward + recomputed work of one microbatch on one stage
    step = m t + bubble + the head on the last stage + sums of gradients + update + what of the
           collectives nothing hides

m microbatches run through p stages of v chunks each (Megatron, arXiv 2104.04473). Everything takes
numbers or arrays over layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num, maximum, where
from shardwise.estimate.training import overlap
from shardwise.estimate.training.extra_traffic import DISPATCH, between_stages
from shardwise.estimate.training.gradient_sync import sync_time, update_s
from shardwise.estimate.training.microbatch import MicrobatchTime, offload_share, repeated_parts
from shardwise.estimate.training.overlap import Overlap
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.strategy.schedules import Times, find


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


def step_time(priced: PricedLayout, one: MicrobatchTime) -> StepTime:
    """One step, from the time of one microbatch."""
    layout, m, stage = priced.layout, priced.layout.n_microbatches, priced.stage
    forward = one.layers["forward"] * stage.share
    backward = one.layers["backward"] * stage.share
    recompute = _recompute(priced, one) * stage.share
    layers = forward + backward + recompute
    traffic = _traffic(priced, one)
    head = _ends(priced, one, layers)
    busiest = m * layers + head
    attention = m * one.attention * stage.share
    hiding = Overlap(priced=priced, traffic=traffic, compute=busiest, attention=attention)
    exposed = hiding.exposed()
    waited: Num = 0.0
    if layout.is_pipelined:  # on the stages without a head, which the bubble is made of
        without_head = replace(hiding, compute=m * layers)
        waited = sum(without_head.exposed().values()) / m
    sync = sync_time(priced)
    idle = hiding.idle_share(exposed)
    idle_backward = idle * backward
    idle_forward = idle * layers - idle_backward
    exposed["data"] = overlap.data(layout.overlap, sync, idle_forward, idle_backward)
    traffic = {**traffic, "data": sync.all_s}
    if "norms" in repeated_parts(layout) and "tensor" in traffic:
        # Beside the product of the gradient of the same input (arXiv 2205.05198, section 4.2.2).
        traffic["tensor"] = traffic["tensor"] + _repeated(priced, one, "norms").get("tensor", 0.0)
    return StepTime(
        compute_s=m * layers,
        head_s=head,
        traffic_s=traffic,
        # What runs beside a product takes a part of the chip from it.
        comm_s={
            role: seconds + priced.rates.cal.contention * (traffic[role] - seconds)
            for role, seconds in exposed.items()
        },
        bubble_s=_bubble(priced, forward, backward + recompute, waited),
        update_s=update_s(priced),
    )


def _recompute(priced: PricedLayout, one: MicrobatchTime) -> Num:
    """What remat runs a second time in all layers."""
    seconds = one.layers["remat"]
    for part in repeated_parts(priced.layout):
        seconds = seconds + one.parts.get(part, 0.0)
    return seconds * priced.remat_share


def _repeated(priced: PricedLayout, one: MicrobatchTime, part: str) -> dict[str, Num]:
    """Role -> collectives of a step that remat of a part runs a second time."""
    n, share = priced.layout.n_microbatches, priced.remat_share
    return {
        role: n * (seconds * share) * priced.stage.share
        for role, seconds in one.repeated.get(part, {}).items()
    }


def _traffic(priced: PricedLayout, one: MicrobatchTime) -> dict[str, Num]:
    """Role -> collectives of a step but for sums of gradients, and for those of `norms`."""
    layout, m, stage = priced.layout, priced.layout.n_microbatches, priced.stage
    traffic: dict[str, Num] = {}
    for role in {**one.traffic, **one.end_traffic}:
        ends = one.end_traffic.get(role, 0.0)
        traffic[role] = m * (one.traffic.get(role, 0.0) * stage.share + ends)
    if DISPATCH in repeated_parts(layout):
        for role, seconds in _repeated(priced, one, DISPATCH).items():
            traffic[role] = traffic.get(role, 0.0) + seconds
    if layout.is_pipelined:
        traffic["pipe"] = m * sum(item.seconds for item in between_stages(priced))
    if "activations" in layout.offload:
        traffic["host"] = m * one.host * stage.share * offload_share(priced)
    return traffic


def _ends(priced: PricedLayout, one: MicrobatchTime, layers: Num) -> Num:
    """By how much the ends of the model lengthen the step.

    Where layers do not divide, the last stage holds the rest and the head (Megatron-LM's
    account_for_loss_in_pipeline_split, DeepSpeed's "type:transformer|embedding").

    Args:
        layers: seconds of one microbatch on the fullest stage.
    """
    config, layout, stage = priced.config, priced.layout, priced.stage
    m, p = layout.n_microbatches, layout.sizes["pipe"]
    layer_s = layers / stage.layers
    first, last = one.embedding, one.unembedding + _token_prediction(priced, one, layer_s)
    if not layout.is_pipelined:
        return m * (first + last)
    schedule = find(layout.schedule)
    if schedule.ends_meet:
        return schedule.ends(p, m, stage.chunks, first, last)
    rest = maximum(config.n_layers - stage.held * (p - 1), 0)
    alone = where(stage.spare > 0, 0.0, first)
    longer = last - (stage.layers - rest * stage.layers / stage.held) * layer_s
    longest = m * maximum(maximum(alone, longer), 0.0)
    return where(p > 1, longest, m * (first + last))


def _token_prediction(priced: PricedLayout, one: MicrobatchTime, layer_s: Num) -> Num:
    """Seconds of multi-token prediction in one microbatch: it joins two residuals, has a layer and
    a pass through the head."""
    layers = priced.rates.extras.mtp_layers
    if not layers:
        return 0.0
    config, mesh = priced.config, priced.mesh
    tokens = priced.layout.micro_batch * priced.job.seq / (mesh["context"] * mesh["tensor"])
    join_s = 3 * 2 * tokens * 2 * config.d_model**2 / priced.rates.matmul_flops_per_s
    # Its layer has both blocks, also where those of the model have one.
    blocks = 1 if config.main_layer.has_both else 2
    return layers * (one.unembedding + blocks * layer_s + join_s)


def _bubble(priced: PricedLayout, forward: Num, backward: Num, comm: Num) -> Num:
    """Idle seconds of the busiest stage under the layout's schedule.

    A schedule that these numbers do not fit (a remainder of microbatches) is taken as its
    whole rounds: (p - 1) / v of a microbatch.
    """
    layout, stage = priced.layout, priced.stage
    if not layout.is_pipelined:
        return 0.0
    p, m, v = layout.sizes["pipe"], layout.n_microbatches, stage.chunks
    # What a stage does for a microbatch is `passes` chunks of work.
    busy = (forward + backward + comm) / (forward + backward) / stage.passes
    times = Times(f=forward * busy, b=backward * busy / 2, w=backward * busy / 2)
    schedule = find(layout.schedule)
    bubble = schedule.bubble(p, m, v, times)
    return where(schedule.legal(p, m, v), bubble, (p - 1) * times.one)
