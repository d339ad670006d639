"""Time of one forward pass of an engine, and what it is spent on. Book §7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, maximum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.routing import is_routed
from shardwise.estimate.serving.attention import attention_items, attention_time
from shardwise.estimate.serving.extra_traffic import batch_shards, extra_traffic, local_rows
from shardwise.estimate.serving.launches import elementwise_bytes, kernel_launches
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.priced_engine import PricedEngine
from shardwise.formulas.experts import hit_share
from shardwise.models import Moe
from shardwise.ops.program import Matmul, Transfer

ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Seconds of one pass by what spends them; `step_s` is the expected time.

    Args:
        matmuls: of the layers.
        decode_attention: of decoding sequences, over their KV cache.
        prefill_attention: of prompts.
        elementwise: norms, rotary, activations, routing.
        kernels: gaps between kernels.
        traffic: role -> collectives.
        head: unembedding.
        host: host work during which the chips are idle.
        overlaps: whether collectives run during local work.
    """

    matmuls: Num
    decode_attention: Num
    prefill_attention: Num
    elementwise: Num
    kernels: Num
    traffic: Mapping[str, Num]
    head: Num
    host: Num
    overlaps: bool = False

    @property
    def local_s(self) -> Num:
        """Time without collectives and host: the bound when all communication is hidden."""
        layers = self.matmuls + self.decode_attention + self.prefill_attention + self.elementwise
        return layers + self.kernels + self.head

    @property
    def comm_s(self) -> Num:
        """Time of all collectives."""
        return sum(self.traffic.values(), 0.0)

    @property
    def step_s(self) -> Num:
        """Expected time of the pass."""
        if self.overlaps:
            return maximum(self.local_s, self.comm_s) + self.host
        return self.local_s + self.comm_s + self.host


def pass_time(engine: PricedEngine, load: Load) -> PassTime:
    """Time of one pass.

    Args:
        engine: one engine, or arrays of them.
        load: tokens of the pass; in a pipeline, of one of its batches in flight.
    """
    rates = engine.rates
    attention = attention_time(engine, load)
    traffic: dict[str, Num] = {}
    for item in collectives(engine, load):
        role = str(item.role)
        traffic[role] = traffic.get(role, 0.0) + item.seconds
    # Each rank of the batch has its own scheduler.
    rank_sequences = load.n_decoding / batch_shards(engine.layout, engine.mesh)
    rank_sequences = rank_sequences + (load.prefill_tokens > 0)
    return PassTime(
        matmuls=sum((item.seconds for item in layer_matmuls(engine, load)), 0.0),
        decode_attention=attention.decode_s,
        prefill_attention=attention.prefill_s,
        elementwise=_elementwise_s(engine, load),
        kernels=kernel_launches(engine.config, load) * rates.efficiency.kernel_s,
        traffic=traffic,
        head=sum((item.seconds for item in head_matmuls(engine, load)), 0.0),
        host=rates.overhead.pass_s + rates.overhead.sequence_s * rank_sequences,
        overlaps=rates.overhead.overlaps,
    )


def pass_items(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """All that one engine runs in a pass on its busiest chip."""
    yield from layer_matmuls(engine, load)
    yield from attention_items(engine, load)
    yield from head_matmuls(engine, load)
    yield from collectives(engine, load)


def layer_matmuls(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Matmuls of the layers."""
    for matmul in engine.program.matmuls:
        yield _priced_matmul(engine, matmul, load.rows, head=False)


def head_matmuls(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Matmuls of the unembedding."""
    for matmul in engine.program.head_matmuls:
        yield _priced_matmul(engine, matmul, load.head_rows, head=True)


def collectives(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Collectives of the sharding algebra, and those outside it."""
    for transfer in engine.program.transfers:
        yield _priced_transfer(engine, transfer, load.rows)
    for transfer in engine.program.head_transfers:
        yield _priced_transfer(engine, transfer, load.head_rows)
    yield from extra_traffic(engine, load)


def _priced_matmul(engine: PricedEngine, matmul: Matmul, rows: Num, *, head: bool) -> PricedItem:
    elements, groups = _weights_read(engine, matmul, rows)
    return engine.rates.matmul(matmul, rows, engine.mesh, elements, groups=groups, head=head)


def _weights_read(engine: PricedEngine, matmul: Matmul, rows: Num) -> tuple[Num, Num]:
    """Count what one occurrence of a matmul reads: (elements of the weight, experts of a chip).

    Of routed experts, those that at least one token chose.
    """
    mesh = engine.mesh
    sizes = {**matmul.sizes, "B": rows}
    elements = matmul.program.local.right.local_elements(sizes, mesh)
    if not matmul.program.einsum.chosen:
        return elements, 1.0
    active_share = hit_share(sizes["E"], sizes["R"], maximum(rows, 1))
    whole_experts = 1
    if engine.layout.expert_tensor:
        whole_experts = mesh["tensor"] / engine.layout.expert_tensor
    groups = maximum(1.0, sizes["E"] * active_share / (mesh["expert"] * whole_experts))
    return elements * active_share / mesh["expert"], groups


def _priced_transfer(engine: PricedEngine, transfer: Transfer, rows: Num) -> PricedItem:
    move = transfer.move
    is_weight = move.before.name in engine.program.weights
    element_bytes = engine.rates.weight_bytes if is_weight else ACTIVATION_BYTES
    n_bytes = move.joined_bytes({**transfer.sizes, "B": rows}, engine.mesh, element_bytes)
    if is_weight and is_routed(move.before):
        n_bytes = n_bytes / engine.mesh["expert"]
    return engine.collective(
        name=transfer.name,
        work=transfer,
        role=transfer.role,
        kind=move.kind,
        axes=move.axes,
        count=transfer.count,
        joined_bytes=n_bytes,
    )


def _elementwise_s(engine: PricedEngine, load: Load) -> Num:
    config = engine.config
    rates = engine.rates
    if rates.ideal:
        return 0.0
    rows = local_rows(engine.layout, engine.mesh, load.rows)
    routed_layers = sum(group.count for group in config.groups if isinstance(group.layer.ffn, Moe))
    n_bytes = rows * elementwise_bytes(config, engine.mesh["tensor"])
    return n_bytes / rates.hbm_bytes_per_s + routed_layers * rates.efficiency.routed_s
