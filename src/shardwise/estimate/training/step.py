"""Time of a training step, from the time of one microbatch.

    t    = forward + backward + recomputed work of one microbatch on one stage
    step = m t + bubble + the head on the last stage + gradient sync + update + exposed collectives

m microbatches run through p stages of v chunks each (Megatron, arXiv 2104.04473). Functions take
single numbers, or arrays with one element per layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num, maximum, where
from shardwise.estimate.training import overlap
from shardwise.estimate.training.extra_traffic import DISPATCH, between_stages
from shardwise.estimate.training.gradient_sync import SyncTime, sync_time, update_s
from shardwise.estimate.training.microbatch import MicrobatchTime, recomputed_parts
from shardwise.estimate.training.offload import offload_share
from shardwise.estimate.training.overlap import Overlap
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.token_prediction import mtp_time, traffic_share
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.schedules import Times, find
from shardwise.strategy.stages import stages


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step by activity; `step_s` is the expected total.

    Args:
        compute_s: matmuls, attention and element-wise work of all microbatches on the chip.
        head_s: seconds by which embedding and unembedding lengthen the step.
        traffic_s: mesh role -> seconds of all its collectives, overlapped or not.
        comm_s: mesh role -> exposed seconds of its collectives, which lengthen the step.
        bubble_s: idle time of the pipeline.
        update_s: optimizer update.
    """

    compute_s: Num
    head_s: Num
    traffic_s: Mapping[str, Num]
    comm_s: Mapping[str, Num]
    bubble_s: Num
    update_s: Num

    @property
    def on_chip_s(self) -> Num:
        """Seconds of the step without communication."""
        return self.compute_s + self.head_s + self.bubble_s + self.update_s

    @property
    def step_s(self) -> Num:
        """Expected seconds of the step."""
        return self.on_chip_s + sum(self.comm_s.values())

    @property
    def lower_s(self) -> Num:
        """Lower bound in seconds: all communication overlaps with everything else."""
        return maximum(self.on_chip_s, 0.0, *self.traffic_s.values())

    @property
    def upper_s(self) -> Num:
        """Upper bound in seconds: no communication overlaps with anything."""
        return self.on_chip_s + sum(self.traffic_s.values())


@dataclass(frozen=True, slots=True)
class OncePerStep:
    """Work that follows the microbatches, which remat and the kind of context leave as it is.

    Args:
        sync: gradient sync.
        update_s: seconds of the optimizer update.
    """

    sync: SyncTime
    update_s: Num


def once_per_step(priced: PricedLayout) -> OncePerStep:
    """Compute gradient sync and the optimizer update."""
    return OncePerStep(sync_time(priced), update_s(priced))


def step_time(
    priced: PricedLayout, microbatch: MicrobatchTime, same_once: OncePerStep | None = None
) -> StepTime:
    """Compute the time of one step from the time of one microbatch.

    Args:
        priced: one layout, or arrays of layouts.
        microbatch: time of one microbatch.
        same_once: `once_per_step` of the layouts, if already computed.
    """
    once = same_once or once_per_step(priced)
    layout = priced.layout
    m = layout.n_microbatches
    stage_share = priced.stage.share
    merges = microbatch.ring_merges
    forward = (microbatch.layers["forward"] + merges.get("forward", 0.0)) * stage_share
    backward = (microbatch.layers["backward"] + merges.get("backward", 0.0)) * stage_share
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
    if layout.is_pipelined:  # the bubble is made of the work of stages without a head
        without_head = replace(overlappable, compute=m * layers)
        bubble_comm = sum(without_head.exposed().values()) / m
    sync = once.sync
    idle_share = overlappable.idle_share(exposed)
    idle_backward = idle_share * backward
    idle_forward = idle_share * layers - idle_backward
    overlapped = () if overlappable.hides_nothing else layout.overlap
    exposed["data"] = overlap.data(overlapped, sync, idle_forward, idle_backward)
    traffic = {**traffic, "data": sync.total_s}
    if "norms" in recomputed_parts(layout) and "tensor" in traffic:
        # Repeated gathers of the blocks' inputs add traffic but no exposed time: they overlap with
        # the matmul of the gradient of the same input (arXiv 2205.05198, section 4.2.2).
        gathers = _recomputed_traffic(priced, microbatch, "norms")
        traffic["tensor"] = traffic["tensor"] + gathers.get("tensor", 0.0)
    # An overlapped collective slows compute by this share of its time, a copy to the host does not.
    contention = priced.rates.calibration.contention
    comm_s = {}
    for role, seconds in exposed.items():
        hidden = 0.0 if role == "host" else traffic[role] - seconds
        comm_s[role] = seconds + contention * hidden
    return StepTime(
        compute_s=m * layers,
        head_s=head,
        traffic_s=traffic,
        comm_s=comm_s,
        bubble_s=_bubble(priced, forward, backward + recompute, bubble_comm),
        update_s=once.update_s,
    )


def _recompute(priced: PricedLayout, microbatch: MicrobatchTime) -> Num:
    """Seconds of compute in all layers that remat runs a second time for one microbatch."""
    seconds = microbatch.layers["remat"] + microbatch.ring_merges.get("remat", 0.0)
    for part in recomputed_parts(priced.layout):
        seconds = seconds + microbatch.parts.get(part, 0.0)
    return seconds * priced.remat_share


def _recomputed_traffic(
    priced: PricedLayout, microbatch: MicrobatchTime, part: str
) -> dict[str, Num]:
    """Mesh role -> seconds of collectives per step that remat of `part` runs a second time."""
    m = priced.layout.n_microbatches
    return {
        role: m * (seconds * priced.remat_share) * traffic_share(priced)
        for role, seconds in microbatch.part_traffic.get(part, {}).items()
    }


def _traffic(priced: PricedLayout, microbatch: MicrobatchTime) -> dict[str, Num]:
    """Mesh role -> seconds of collectives per step, except gradient sync.

    The gathers that remat of `norms` repeats are not included either.
    """
    layout = priced.layout
    m = layout.n_microbatches
    stage_share = traffic_share(priced)
    traffic: dict[str, Num] = {}
    for role in {**microbatch.traffic, **microbatch.outer_traffic}:
        outer = microbatch.outer_traffic.get(role, 0.0)
        traffic[role] = m * (microbatch.traffic.get(role, 0.0) * stage_share + outer)
    if DISPATCH in recomputed_parts(layout):
        for role, seconds in _recomputed_traffic(priced, microbatch, DISPATCH).items():
            traffic[role] = traffic.get(role, 0.0) + seconds
    if layout.is_pipelined:
        traffic["pipe"] = m * sum(item.seconds for item in between_stages(priced))
    if layout.offloads_activations:
        traffic["host"] = m * microbatch.offload * stage_share * offload_share(priced)
    return traffic


def _embedding_and_head(priced: PricedLayout, microbatch: MicrobatchTime, layers: Num) -> Num:
    """Seconds by which embedding and head lengthen the step.

    Args:
        microbatch: times of one microbatch.
        layers: seconds of one microbatch on the fullest stage.
    """
    layer_s = layers / priced.stage.layers
    head = microbatch.unembedding + mtp_time(priced, microbatch, layer_s)
    return ends_work(priced.config.n_layers, priced.layout, layers, microbatch.embedding, head)


def ends_work(
    n_layers: int, layout: Layout | Layouts, layers: Num, embedding: Num, head: Num
) -> Num:
    """The work of a step that the busiest stage does beyond that of a stage full of layers.

    If the number of layers is not divisible by the stages, the last stage has fewer layers and the
    head, and the first stage has room for the embedding (Megatron-LM's
    account_for_loss_in_pipeline_split, DeepSpeed's "type:transformer|embedding").

    Args:
        n_layers: layers of the model.
        layers, embedding, head: the work of one microbatch in the layers of the fullest stage, in
            the embedding and in the head, in the same unit as the result: seconds, FLOPs, bytes.
    """
    stage = stages(n_layers, layout)
    m = layout.n_microbatches
    p = layout.sizes["pipe"]
    if not layout.is_pipelined:
        return m * (embedding + head)
    schedule = find(layout.schedule)
    if schedule.ends_meet:
        return schedule.ends(p, m, stage.chunks, embedding, head)
    last_layers = maximum(n_layers - stage.held * (p - 1), 0)
    # By how much the first and the last stage have more work than a stage full of layers.
    first_excess = where(stage.spare > 0, 0.0, embedding)
    last_excess = head - (stage.layers - last_layers * stage.layers / stage.held) * (
        layers / stage.layers
    )
    longest = m * maximum(maximum(first_excess, last_excess), 0.0)
    return where(p > 1, longest, m * (embedding + head))


def _bubble(priced: PricedLayout, forward: Num, backward: Num, comm: Num) -> Num:
    """Idle seconds of the busiest stage under the layout's schedule.

    If the schedule does not allow the number of microbatches (they leave a remainder), its bubble
    is taken to be p - 1 times the work of one chunk for a microbatch.

    Args:
        forward: forward seconds of one microbatch on a stage.
        backward: backward seconds of one microbatch on a stage, with recomputation.
        comm: exposed collective seconds of one microbatch on a stage.
    """
    layout = priced.layout
    stage = priced.stage
    if not layout.is_pipelined:
        return 0.0
    sizes = (layout.sizes["pipe"], layout.n_microbatches, stage.chunks)
    # Times of one chunk: a stage runs `passes` chunks for each microbatch.
    scale = (forward + backward + comm) / (forward + backward) / stage.passes
    times = Times(f=forward * scale, b=backward * scale / 2, w=backward * scale / 2)
    schedule = find(layout.schedule)
    bubble = schedule.bubble(*sizes, times)
    return where(schedule.legal(*sizes), bubble, (sizes[0] - 1) * times.all_passes)
