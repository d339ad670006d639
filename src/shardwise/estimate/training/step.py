"""Time of a training step, from the time of one microbatch.

    t    = forward + backward + recomputed work of one microbatch on one stage
    step = m t + bubble + the head on the last stage + gradient sync + update + exposed collectives

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
from shardwise.estimate.training.microbatch import MicrobatchTime, offload_share, recomputed_parts
from shardwise.estimate.training.overlap import Overlap
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.strategy.schedules import Times, find


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step by what spends them; `step_s` is their sum.

    Args:
        compute_s: matmuls, attention and element-wise work of all microbatches on the chip.
        head_s: embedding and unembedding, as far as they lengthen the longest stage.
        traffic_s: role -> all collectives, as if none overlapped.
        comm_s: role -> exposed collectives.
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
        """Time without communication."""
        return self.compute_s + self.head_s + self.bubble_s + self.update_s

    @property
    def step_s(self) -> Num:
        """Expected time of the step."""
        return self.on_chip_s + sum(self.comm_s.values())

    @property
    def lower_s(self) -> Num:
        """Lower bound: all communication overlaps with everything else."""
        return maximum(self.on_chip_s, 0.0, *self.traffic_s.values())

    @property
    def upper_s(self) -> Num:
        """Upper bound: no communication overlaps."""
        return self.on_chip_s + sum(self.traffic_s.values())


def step_time(priced: PricedLayout, microbatch: MicrobatchTime) -> StepTime:
    """Time of one step, from the time of one microbatch."""
    layout = priced.layout
    m = layout.n_microbatches
    stage_share = priced.stage.share
    forward = microbatch.layers["forward"] * stage_share
    backward = microbatch.layers["backward"] * stage_share
    recompute = _recompute(priced, microbatch) * stage_share
    layers = forward + backward + recompute
    traffic = _traffic(priced, microbatch)
    head = _embedding_and_head(priced, microbatch, layers)
    attention = m * microbatch.attention * stage_share
    overlappable = Overlap(
        priced=priced, traffic=traffic, compute=m * layers + head, attention=attention
    )
    exposed = overlappable.exposed()
    bubble_comm: Num = 0.0
    if layout.is_pipelined:  # of the stages without a head, which the bubble consists of
        without_head = replace(overlappable, compute=m * layers)
        bubble_comm = sum(without_head.exposed().values()) / m
    sync = sync_time(priced)
    idle_share = overlappable.idle_share(exposed)
    idle_backward = idle_share * backward
    idle_forward = idle_share * layers - idle_backward
    exposed["data"] = overlap.data(layout.overlap, sync, idle_forward, idle_backward)
    traffic = {**traffic, "data": sync.total_s}
    if "norms" in recomputed_parts(layout) and "tensor" in traffic:
        # During the matmul of the gradient of the same input (arXiv 2205.05198, section 4.2.2).
        gathers = _recomputed_traffic(priced, microbatch, "norms")
        traffic["tensor"] = traffic["tensor"] + gathers.get("tensor", 0.0)
    contention = priced.rates.calibration.contention  # share of the chip that a collective takes
    comm_s = {}
    for role, seconds in exposed.items():
        comm_s[role] = seconds + contention * (traffic[role] - seconds)
    return StepTime(
        compute_s=m * layers,
        head_s=head,
        traffic_s=traffic,
        comm_s=comm_s,
        bubble_s=_bubble(priced, forward, backward + recompute, bubble_comm),
        update_s=update_s(priced),
    )


def _recompute(priced: PricedLayout, microbatch: MicrobatchTime) -> Num:
    """Compute of all layers that remat runs a second time."""
    seconds = microbatch.layers["remat"]
    for part in recomputed_parts(priced.layout):
        seconds = seconds + microbatch.parts.get(part, 0.0)
    return seconds * priced.remat_share


def _recomputed_traffic(
    priced: PricedLayout, microbatch: MicrobatchTime, part: str
) -> dict[str, Num]:
    """Collectives of a step that remat of a part runs a second time, by role."""
    m = priced.layout.n_microbatches
    return {
        role: m * (seconds * priced.remat_share) * priced.stage.share
        for role, seconds in microbatch.part_traffic.get(part, {}).items()
    }


def _traffic(priced: PricedLayout, microbatch: MicrobatchTime) -> dict[str, Num]:
    """Collectives of a step by role, without gradient sync and the repeated gathers of `norms`."""
    layout = priced.layout
    m = layout.n_microbatches
    stage_share = priced.stage.share
    traffic: dict[str, Num] = {}
    for role in {**microbatch.traffic, **microbatch.outer_traffic}:
        outer = microbatch.outer_traffic.get(role, 0.0)
        traffic[role] = m * (microbatch.traffic.get(role, 0.0) * stage_share + outer)
    if DISPATCH in recomputed_parts(layout):
        for role, seconds in _recomputed_traffic(priced, microbatch, DISPATCH).items():
            traffic[role] = traffic.get(role, 0.0) + seconds
    if layout.is_pipelined:
        traffic["pipe"] = m * sum(item.seconds for item in between_stages(priced))
    if "activations" in layout.offload:
        traffic["host"] = m * microbatch.offload * stage_share * offload_share(priced)
    return traffic


def _embedding_and_head(priced: PricedLayout, microbatch: MicrobatchTime, layers: Num) -> Num:
    """Seconds by which embedding and head lengthen the step.

    Where layers do not divide, the last stage holds the remainder and the head (Megatron-LM's
    account_for_loss_in_pipeline_split, DeepSpeed's "type:transformer|embedding").

    Args:
        priced: the layout.
        microbatch: times of one microbatch.
        layers: seconds of one microbatch on the fullest stage.
    """
    layout = priced.layout
    stage = priced.stage
    m = layout.n_microbatches
    p = layout.sizes["pipe"]
    layer_s = layers / stage.layers
    first = microbatch.embedding
    last = microbatch.unembedding + _token_prediction(priced, microbatch, layer_s)
    if not layout.is_pipelined:
        return m * (first + last)
    schedule = find(layout.schedule)
    if schedule.ends_meet:
        return schedule.ends(p, m, stage.chunks, first, last)
    last_layers = maximum(priced.config.n_layers - stage.held * (p - 1), 0)
    on_first = where(stage.spare > 0, 0.0, first)
    on_last = last - (stage.layers - last_layers * stage.layers / stage.held) * layer_s
    longest = m * maximum(maximum(on_first, on_last), 0.0)
    return where(p > 1, longest, m * (first + last))


def _token_prediction(priced: PricedLayout, microbatch: MicrobatchTime, layer_s: Num) -> Num:
    """Seconds of multi-token prediction in one microbatch.

    Each of its layers joins two residuals, has a Transformer layer and a pass through the head.
    """
    mtp_layers = priced.rates.variant.mtp_layers
    if not mtp_layers:
        return 0.0
    config = priced.config
    mesh = priced.mesh
    tokens = priced.layout.micro_batch * priced.job.seq / (mesh["context"] * mesh["tensor"])
    join_s = 3 * 2 * tokens * 2 * config.d_model**2 / priced.rates.matmul_flops_per_s
    # Its layer has attention and a feed-forward block even if the model's layers have only one.
    blocks = 1 if config.main_layer.has_both else 2
    return mtp_layers * (microbatch.unembedding + blocks * layer_s + join_s)


def _bubble(priced: PricedLayout, forward: Num, backward: Num, comm: Num) -> Num:
    """Idle seconds of the busiest stage under the layout's schedule.

    Where the schedule is not legal for these sizes (a remainder of microbatches), the bubble of its
    whole rounds is used: (p - 1) / v of a microbatch.
    """
    layout = priced.layout
    stage = priced.stage
    if not layout.is_pipelined:
        return 0.0
    sizes = (layout.sizes["pipe"], layout.n_microbatches, stage.chunks)
    # A stage runs `passes` chunks for a microbatch.
    scale = (forward + backward + comm) / (forward + backward) / stage.passes
    times = Times(f=forward * scale, b=backward * scale / 2, w=backward * scale / 2)
    schedule = find(layout.schedule)
    bubble = schedule.bubble(*sizes, times)
    return where(schedule.legal(*sizes), bubble, (sizes[0] - 1) * times.all_passes)
