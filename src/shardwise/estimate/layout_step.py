"""The time of a training step under a given layout: pipeline, ZeRO, experts, remat, overlap.

    t      = forward + backward + recomputed work of one microbatch on one stage
    step   = (m + (p - 1) / v) t + the head on the last stage + sums of gradients + update

m microbatches run through p stages of v chunks each (Megatron, arXiv 2104.04473). What the sharding
algebra derives for a microbatch is used as it is; what it cannot see (stages, routing, sums that
wait for the last microbatch) is added here by name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.prices import Prices
from shardwise.estimate.training import element_bytes
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig, Moe
from shardwise.models.weights import layer_weights, outer_weights
from shardwise.ops.einsum import shards
from shardwise.ops.program import Matmul, Step, Transfer, training_step
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Placement, place
from shardwise.strategy.schedules import Times, find
from shardwise.workload import Train

ENDS = ("embed", "unembed")
CORE = ("attn.scores", "attn.values")
# Reads and writes of element-wise steps in one layer, forward, in multiples of each width: two
# norms and two sums of D, rotation of queries and keys, activation of F. The backward pass has
# twice as many.
ELEMENTWISE = {"D": 10.0, "heads": 2.0, "F": 3.0}
BACKWARD = 2.0
UNFUSED = 2.5  # operations for one fused kernel: a norm or an activation is two or three
TP_CHUNKS = 4  # pieces of an overlapped product (Transformer Engine's user buffers)
LAST_BUCKET = 0.1  # gradients of the first layers come last: nothing is left to hide their sum
SCORE_BYTES = 13.0  # a score in 16 bits through scale, mask, softmax and dropout, and its mask


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutStep:
    """Seconds of a step by what spends them; the sum is the step.

    Args:
        compute_s: matmuls, attention and element-wise work of all microbatches on the chip.
        head_s: embedding and unembedding, which lengthen the longest stage.
        traffic_s: collectives by role, none of them hidden.
        comm_s: what of them nothing hides.
        bubble_s: idle time of the pipeline.
        update_s: the optimizer.
    """

    compute_s: float
    head_s: float
    traffic_s: Mapping[str, float]
    comm_s: Mapping[str, float]
    bubble_s: float
    update_s: float

    @property
    def on_chip_s(self) -> float:
        """Everything but communication."""
        return self.compute_s + self.head_s + self.bubble_s + self.update_s

    @property
    def step_s(self) -> float:
        """The expected step."""
        return self.on_chip_s + sum(self.comm_s.values())

    @property
    def upper_s(self) -> float:
        """The step with no communication hidden."""
        return self.on_chip_s + sum(self.traffic_s.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What a framework fuses.

    Args:
        flash: attention in tiles; else the whole square is computed and scores go through HBM.
        fused: element-wise steps read and write once; else each operation does.
    """

    flash: bool = True
    fused: bool = True


def layout_step(
    config: ModelConfig,
    system: System,
    job: Train,
    layout: Layout,
    calibration: Calibration = PEAK,
    kernels: Kernels | None = None,
) -> LayoutStep:
    """Predict one step of a layout on a machine.

    Args:
        calibration: what the chip reaches of its rates; at peak when not given.
        kernels: what the framework fuses; everything when not given.

    Raises:
        NoStrategy: the mesh does not lie on the machine.
        UnknownFigure: a figure that the chip's file does not have.
    """
    return Estimate(config, system, job, layout, calibration, kernels or Kernels()).step()


class Estimate:
    """One layout on one machine, derived once; the parts of a step are its methods."""

    def __init__(
        self,
        config: ModelConfig,
        system: System,
        job: Train,
        layout: Layout,
        cal: Calibration,
        kernels: Kernels,
    ) -> None:
        self.config, self.job, self.layout, self.cal = config, job, layout, cal
        self.kernels = kernels
        self.chip: Chip = system.chip
        self.mesh = layout.mesh.sizes
        self.pipe = layout.mesh.pipe
        batch = layout.micro_batch * layout.data_shards
        remat = "full" if layout.remat == "full" else "none"
        rules = rules_of(layout)
        self.works: Step = training_step(config, batch, job.seq, rules, remat=remat)
        placement = min(place(system, self.mesh), key=self._traffic)
        self.prices = Prices([placement])

    def at(self, cal: Calibration, kernels: Kernels) -> Estimate:
        """The same layout at other rates; nothing is derived again."""
        other = copy.copy(self)
        other.cal, other.kernels = cal, kernels
        return other

    def _traffic(self, placement: Placement) -> float:
        """What all collectives take on a placement: the choice between several."""
        prices = Prices([placement])
        return sum(
            float(prices.of(t.move.kind, t.move.axes).time_s(t.elements(self.mesh)))
            for t in self.works.transfers
        )

    def step(self) -> LayoutStep:
        """All parts together."""
        m = self.layout.n_microbatches
        forward, backward, again = (self._layers(p) for p in ("forward", "backward", "remat"))
        ends = sum(self._matmul_s(w) for w in self.works.matmuls if w.name.split(".")[0] in ENDS)
        layers = forward + backward + again
        inner = self._inner(m)
        exposed = self._exposed(inner, m * layers)
        sums = self._sums()
        comm = sum(exposed.values()) / m
        return LayoutStep(
            compute_s=m * layers,
            head_s=m * ends,
            traffic_s={**inner, "data": sums},
            comm_s={**exposed, "data": self._exposed_sums(sums, layers, backward)},
            bubble_s=self._bubble(forward, backward + again, comm),
            update_s=self._update(),
        )

    def _bubble(self, forward: float, backward: float, comm: float) -> float:
        """Idle seconds of the busiest stage under the layout's schedule.

        A schedule that these numbers do not fit (a remainder of microbatches) is taken as its
        whole rounds: (p - 1) / v of a microbatch.
        """
        p, m, v = self.pipe, self.layout.n_microbatches, self.layout.virtual
        if p == 1:
            return 0.0
        busy = (forward + backward + comm) / (forward + backward)
        times = Times(f=forward * busy / v, b=backward * busy / 2 / v, w=backward * busy / 2 / v)
        schedule = find(self.layout.schedule)
        if schedule.legal(p, m, v):
            return float(schedule.bubble(p, m, v, times))
        return float((p - 1) * times.one)

    def _layers(self, phase: str) -> float:
        """Seconds of one microbatch in the layers of one stage."""
        works = [m for m in self.works.matmuls if m.phase == phase]
        seconds = sum(self._matmul_s(m) for m in works if m.name.split(".")[0] not in ENDS)
        if phase == "remat" and self.layout.remat_layers and seconds:
            seconds *= min(1.0, self.layout.remat_layers / self.config.n_layers)
        if phase == "remat" and self.layout.remat == "selective":
            seconds += self._selected()
        passes = {"forward": 1.0, "backward": BACKWARD, "remat": 1.0 if works else 0.0}[phase]
        return (seconds + passes * self._elementwise()) / self.pipe

    def _selected(self) -> float:
        """Products that selective remat runs again."""
        parts = set(self.layout.recomputed)
        return sum(
            self._matmul_s(m)
            for m in self.works.matmuls
            if m.phase == "forward" and m.name.split(".")[-1] in parts
        )

    def _matmul_s(self, matmul: Matmul) -> float:
        """Roofline of one matmul at the achieved rates, with the start of its kernels."""
        core = matmul.name.startswith(CORE)
        dtype = "bf16" if core or matmul.name.split(".")[0] in ENDS else self.job.compute
        if dtype == "bf16" and "bf16" not in self.chip.peak_flops_per_s:
            dtype = "fp16"
        reached = self._attention() if core else self.cal.matmul(dtype)
        flops = float(matmul.flops(self.mesh))
        if core:
            # The backward pass computes the scores again: five products for four.
            flops *= 1.25 if matmul.phase == "backward" else 1.0
            if not self.kernels.flash:
                flops /= float(matmul.share)
        if matmul.program.einsum.chosen:
            reached *= self.cal.grouped
        n_bytes = sum(float(n) * self._element(name) for name, n in matmul.elements(self.mesh))
        if matmul.program.einsum.chosen:  # a chip reads its own experts only
            n_bytes /= self.mesh["expert"]
        rate = self.chip.need("hbm_bytes_per_s") * self.cal.hbm
        math_s = flops / (self.chip.peak(dtype) * reached)
        if core and not self.kernels.flash:
            n_bytes += float(matmul.count * self._score_bytes(matmul))
        return max(math_s, n_bytes / rate) + matmul.count * self.cal.kernel_s

    def _attention(self) -> float:
        """Share of the peak in attention: a head narrower than the matrix unit fills a part."""
        side = max(self.chip.matrix_unit or (1,)) if self.chip.kind == "tpu" else 1
        return self.cal.attention * min(1.0, self.config.d_head / side)

    def _score_bytes(self, matmul: Matmul) -> float:
        """Scores written, masked, normalised, dropped and read: half with each product."""
        s = next(
            a
            for a in (*matmul.program.local.inputs, matmul.program.local.output)
            if a.name in ("s", "ds")
        )
        return float(s.local_elements(matmul.sizes, self.mesh)) * SCORE_BYTES / 2

    def _elementwise(self) -> float:
        """Norms, sums, rotations and activations of one forward pass over all layers, seconds."""
        tokens = self.layout.micro_batch * self.job.seq / self.mesh["context"]
        tensor = self.mesh["tensor"]
        whole = 1 if self.layout.sequence_parallel else tensor
        total = 0.0
        for group in self.config.groups:
            layer, D = group.layer, float(self.config.d_model)
            heads = (layer.attention.n_heads + layer.attention.n_kv_heads) * layer.attention.d_head
            ffn = layer.ffn
            width = float(ffn.d_ff)
            if isinstance(ffn, Moe):
                width = ffn.d_ff * ffn.experts_per_token + ffn.d_ff_shared
                # Tokens are copied to their experts and their results back and added.
                D = D * (1 + 4 * ffn.experts_per_token / ELEMENTWISE["D"])
            split = ELEMENTWISE["heads"] * heads + ELEMENTWISE["F"] * width
            total += group.count * (ELEMENTWISE["D"] * D * whole + split) / tensor
        rate = self.chip.need("hbm_bytes_per_s") * self.cal.hbm
        again = 1.0 if self.kernels.fused else UNFUSED
        return again * tokens * total * self.job.activation_bytes / rate

    def _inner(self, m: int) -> dict[str, float]:
        """Collectives inside the microbatches, seconds of the whole step by role."""
        found: dict[str, float] = {}
        for transfer in self.works.transfers:
            if transfer.role == "data" or self._waits(transfer):
                continue
            seconds = m * self._transfer_s(transfer)
            if transfer.name.split(".")[0] not in ENDS:
                seconds /= self.pipe
            found[transfer.role] = found.get(transfer.role, 0.0) + seconds
        if self.layout.expert_degree > 1:
            found["expert"] = m * self._routing()
        if self.pipe > 1:
            found["pipe"] = 2 * m * self.layout.virtual * self._send()
        return found

    def _exposed(self, traffic: Mapping[str, float], compute: float) -> dict[str, float]:
        """What is left of it where the layout overlaps it."""
        found = dict(traffic)
        overlap = self.layout.overlap
        if "tensor" in found and "tp_comm" in overlap:
            # A chunk of a product runs beside the transfer of the next; the first has nothing.
            found["tensor"] /= min(TP_CHUNKS, self.mesh["tensor"])
        if "fsdp" in found:
            # Gathers run one layer ahead: the first layer's is waited for.
            first = found["fsdp"] / self.config.n_layers
            found["fsdp"] = max(first, found["fsdp"] - compute)
        if "expert" in found and "expert_all_to_all" in overlap:
            found["expert"] /= 2  # beside the other half of the microbatch
        if "pipe" in found and "pipe_p2p" in overlap:
            found["pipe"] = 2 * (self.pipe - 1) * self._send()
        return found

    def _waits(self, transfer: Transfer) -> bool:
        """Sums of gradients happen once a step, unless ZeRO-3 scatters them at once."""
        name = transfer.move.before.name
        return self.layout.zero < 3 and name.startswith("d") and name[1:] in self.works.weights

    def _transfer_s(self, transfer: Transfer) -> float:
        before = transfer.move.before
        n_bytes = float(transfer.elements(self.mesh)) * self._element(before.name)
        if len(before.dims) == 3 and before.dims[0].name == "E":  # its own experts only
            n_bytes /= self.mesh["expert"]
        return transfer.count * self._once(transfer.move.kind, transfer.move.axes, n_bytes)

    def _element(self, name: str) -> float:
        """Bytes per element; weights held wider are cast to 16 bits before they are used."""
        found = element_bytes(name, self.works.weights, self.job)
        return min(found, 2.0) if name in self.works.weights else found

    def _routing(self) -> float:
        """Tokens to experts and back, forward and backward: four exchanges in a routed layer."""
        n = self.layout.expert_degree
        axes = ("expert",) if self.mesh["expert"] > 1 else ("tensor",)
        total = 0.0
        for group in self.config.groups:
            if isinstance(group.layer.ffn, Moe):
                copies = min(group.layer.ffn.experts_per_token, n)
                n_bytes = self._residual_bytes() * copies * shards(axes, self.mesh)
                total += 4 * group.count * self._once("all_to_all", axes, n_bytes)
        return total / self.pipe

    def _send(self) -> float:
        """The activations of one microbatch to the next stage."""
        return self._once("permute", ("pipe",), self._residual_bytes())

    def _residual_bytes(self) -> float:
        """The residual of one microbatch on a chip, as it lies between blocks, in 16 bits."""
        split = self.mesh["context"] * (self.mesh["tensor"] if self.layout.sequence_parallel else 1)
        return self.layout.micro_batch * self.job.seq * self.config.d_model * 2.0 / split

    def _sums(self) -> float:
        """Gradients summed, and under ZeRO updated weights sent back, once a step."""
        job, zero = self.job, self.layout.zero
        gradient, weight = units.bytes_per_element(job.gradients), min(job.weight_bytes, 2.0)
        total = 0.0
        for axes, parameters in self._held():
            if shards(axes, self.mesh) == 1:
                continue
            if zero == 0:
                total += self._once("all_reduce", axes, parameters * gradient)
            else:
                total += self._once("reduce_scatter", axes, parameters * gradient)
                total += self._once("all_gather", axes, parameters * weight)
        return total

    def _exposed_sums(self, sums: float, layers: float, backward: float) -> float:
        """Sums run beside the last backward pass, gathers beside the first forward pass."""
        beside = {"grad_reduce": backward, "param_gather": layers - backward}
        room = sum(t for name, t in beside.items() if name in self.layout.overlap)
        return max(sums * LAST_BUCKET, sums - room)

    def _once(self, kind: str, axes: tuple[str, ...], n_bytes: float) -> float:
        price = self.prices.of(kind, axes)
        return float(price.time_s(n_bytes / self.cal.network)) + self.cal.collective_s

    def _held(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """(axes over which gradients are summed, parameters that one chip sums over them)."""
        sharded = self.layout.zero == 3
        dense, routed = 0.0, 0.0
        for group in self.config.groups:
            for weight in layer_weights(self.config, group.layer):
                n = weight.size * group.count / self.pipe
                if "E" in weight.dims and weight.matmul and len(weight.dims) == 3:
                    routed += n / (self.mesh["expert"] * self.mesh["tensor"])
                else:
                    dense += n / (self.mesh["tensor"] if weight.matmul else 1)
        outer = sum(w.size for w in outer_weights(self.config)) / self.mesh["tensor"]
        dense += outer / min(2, self.pipe)
        if not sharded:
            yield ("data", "expert", "context"), dense
            yield ("data", "context"), routed
        else:
            split = self.mesh["fsdp"] * self.mesh["context"]
            yield ("data", "expert"), dense / split
            yield ("data",), routed / split

    def _update(self) -> float:
        """Optimizer state read and written once."""
        job, zero = self.job, self.layout.zero
        held = sum(n for _, n in self._held())
        if 0 < zero < 3:
            held /= self.mesh["data"] * self.mesh["context"]
        state = 2 * (job.weight_bytes + job.optimizer_bytes) + 4.0
        return held * state / (self.chip.need("hbm_bytes_per_s") * self.cal.hbm)
