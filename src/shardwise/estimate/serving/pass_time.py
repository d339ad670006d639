"""Seconds of one pass of an engine through all layers, by what spends them. Book §7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, maximum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.routing import is_routed
from shardwise.estimate.serving.attention import core, core_items
from shardwise.estimate.serving.extra_traffic import batch_shards, extra_traffic, rows_here
from shardwise.estimate.serving.launches import elementwise_bytes, layer_kernels
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.priced_engine import PricedEngine
from shardwise.formulas.experts import hit_share
from shardwise.models import Moe
from shardwise.ops.program import Matmul, Transfer
from shardwise.strategy.serving_layout import ServeForm

ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Seconds of one pass, and what they are spent on; the sum is the expected time.

    Args:
        weights: products in the layers.
        caches: attention over caches of sequences that generate.
        prompts: attention of prompts.
        elementwise: norms, rotations, activations, routing.
        kernels: gaps between kernels.
        traffic: role -> collectives.
        head: unembedding.
        host: what the chips wait for the software.
        overlaps: collectives run under local work.
    """

    weights: Num
    caches: Num
    prompts: Num
    elementwise: Num
    kernels: Num
    traffic: Mapping[str, Num]
    head: Num
    host: Num
    overlaps: bool = False

    @property
    def local_s(self) -> Num:
        """Without collectives and host: the bound when all communication is hidden."""
        parts = self.weights + self.caches + self.prompts + self.elementwise
        return parts + self.kernels + self.head

    @property
    def comm_s(self) -> Num:
        """Collectives."""
        return sum(self.traffic.values(), 0.0)

    @property
    def step_s(self) -> Num:
        """Seconds of the pass."""
        if self.overlaps:
            return maximum(self.local_s, self.comm_s) + self.host
        return self.local_s + self.comm_s + self.host


def pass_time(engine: PricedEngine, load: Load) -> PassTime:
    """Seconds of one pass.

    Args:
        load: what the pass computes; in a pipeline, of one of its batches in flight.
    """
    rates, layout, mesh = engine.rates, engine.layout, engine.mesh
    attention = core(engine, load)
    traffic: dict[str, Num] = {}
    for item in collectives(engine, load):
        role = str(item.role)
        traffic[role] = traffic.get(role, 0.0) + item.seconds
    # Each rank of the batch has its own scheduler.
    sequences = load.decode / batch_shards(layout, mesh) + (load.prefill > 0)
    return PassTime(
        weights=sum((item.seconds for item in products(engine, load)), 0.0),
        caches=attention.caches,
        prompts=attention.prompts,
        elementwise=_elementwise_s(engine, load),
        kernels=layer_kernels(engine.config, load) * rates.shares.kernel_s,
        traffic=traffic,
        head=sum((item.seconds for item in head_products(engine, load)), 0.0),
        host=rates.engine.pass_s + rates.engine.sequence_s * sequences,
        overlaps=rates.engine.overlaps,
    )


def pass_items(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """All that one engine runs in a pass on its busiest chip."""
    yield from products(engine, load)
    yield from core_items(engine, load)
    yield from head_products(engine, load)
    yield from collectives(engine, load)


def products(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Products in the layers."""
    for matmul in engine.program.matmuls:
        yield _product(engine, matmul, load.rows, head=False)


def head_products(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Products of the unembedding."""
    for matmul in engine.program.head_matmuls:
        yield _product(engine, matmul, load.head_rows, head=True)


def collectives(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Collectives of the sharding algebra, and those beside it."""
    for transfer in engine.program.transfers:
        yield _collective(engine, transfer, load.rows)
    for transfer in engine.program.head_transfers:
        yield _collective(engine, transfer, load.head_rows)
    yield from extra_traffic(engine, load)


def _product(engine: PricedEngine, matmul: Matmul, rows: Num, *, head: bool) -> PricedItem:
    elements, groups = _weights_read(matmul, engine.layout, engine.mesh, rows)
    return engine.rates.product(matmul, rows, engine.mesh, elements, groups=groups, head=head)


def _weights_read(
    matmul: Matmul, form: ServeForm, sizes: Mapping[str, Num], rows: Num
) -> tuple[Num, Num]:
    """(elements of weights, experts of a chip) that one occurrence reads; experts that are hit."""
    given = {**matmul.sizes, "B": rows}
    elements = matmul.program.local.right.local_elements(given, sizes)
    if not matmul.program.einsum.chosen:
        return elements, 1.0
    experts = given["E"]
    hit = hit_share(experts, given["R"], maximum(rows, 1))
    whole = sizes["tensor"] / form.expert_tensor if form.expert_tensor else 1
    groups = maximum(1.0, experts * hit / (sizes["expert"] * whole))
    return elements * hit / sizes["expert"], groups


def _collective(engine: PricedEngine, transfer: Transfer, rows: Num) -> PricedItem:
    move = transfer.move
    is_weight = move.before.name in engine.program.weights
    width = engine.rates.weight_bytes if is_weight else ACTIVATION_BYTES
    n_bytes = move.joined_bytes({**transfer.sizes, "B": rows}, engine.mesh, width)
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
    config, rates = engine.config, engine.rates
    if rates.ideal:
        return 0.0
    rows = rows_here(engine.layout, engine.mesh, load.rows)
    routed = sum(g.count for g in config.groups if isinstance(g.layer.ffn, Moe))
    n_bytes = rows * elementwise_bytes(config, engine.mesh["tensor"])
    return n_bytes / rates.hbm + routed * rates.shares.routed_s
