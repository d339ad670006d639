"""Seconds of one pass of an engine through all layers, by what spends them. Book §7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, maximum, where
from shardwise.estimate.collective_cost import Prices
from shardwise.estimate.serving.attention import core
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.extra_traffic import batch_shards, exchanges, rows_here
from shardwise.estimate.serving.launches import elementwise_bytes, layer_kernels
from shardwise.estimate.serving.load import Load
from shardwise.formulas.experts import hit_share
from shardwise.models import ModelConfig, Moe
from shardwise.ops.forward import Forward
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


def pass_time(
    config: ModelConfig,
    works: Forward,
    form: ServeForm,
    sizes: Mapping[str, Num],
    prices: Prices,
    rates: ServeRates,
    load: Load,
) -> PassTime:
    """Seconds of one pass under the layouts of a form.

    Args:
        works: of the form's table.
        sizes: chips by role of the mesh.
        prices: of collectives on the layouts' placements.
        load: what the pass computes; in a pipeline, of one of its batches in flight.
    """
    found = core(config, form, sizes, rates, load)
    traffic: dict[str, Num] = {}
    for role, seconds in _collectives(works, sizes, prices, rates, load):
        traffic[role] = traffic.get(role, 0.0) + seconds
    for sent in exchanges(config, form, sizes, load):
        one = rates.send_s(prices, sent.kind, sent.axes, sent.n_bytes, sizes)
        traffic[sent.role] = traffic.get(sent.role, 0.0) + sent.count * one
    kernels = layer_kernels(config, load) * rates.shares.kernel_s
    # Each rank of the batch has its own scheduler.
    sequences = load.decode / batch_shards(form, sizes) + (load.prefill > 0)
    return PassTime(
        weights=sum((_product_s(m, form, sizes, rates, load.rows) for m in works.matmuls), 0.0),
        caches=found.caches,
        prompts=found.prompts,
        elementwise=_elementwise_s(config, form, sizes, rates, load),
        kernels=kernels,
        traffic=traffic,
        head=sum(
            (
                _product_s(m, form, sizes, rates, load.head_rows, head=True)
                for m in works.head_matmuls
            ),
            0.0,
        ),
        host=rates.engine.pass_s + rates.engine.sequence_s * sequences,
        overlaps=rates.engine.overlaps,
    )


def _product_s(
    matmul: Matmul,
    form: ServeForm,
    sizes: Mapping[str, Num],
    rates: ServeRates,
    rows: Num,
    *,
    head: bool = False,
) -> Num:
    """Seconds of all `count` occurrences."""
    given = {**matmul.sizes, "B": rows}
    elements, groups = weights_read(matmul, form, sizes, rows)
    one = rates.product_s(matmul, given, sizes, elements, groups=groups, head=head)
    return where(rows > 0, matmul.count * one, 0.0)


def weights_read(
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


def _collectives(
    works: Forward,
    sizes: Mapping[str, Num],
    prices: Prices,
    rates: ServeRates,
    load: Load,
) -> Iterator[tuple[str, Num]]:
    ends = [(t, load.head_rows) for t in works.head_transfers]
    for transfer, rows in [*((t, load.rows) for t in works.transfers), *ends]:
        yield transfer.role, _transfer_s(transfer, works, sizes, prices, rates, rows)


def _transfer_s(
    transfer: Transfer,
    works: Forward,
    sizes: Mapping[str, Num],
    prices: Prices,
    rates: ServeRates,
    rows: Num,
) -> Num:
    move, n_bytes = transfer.move, sent_bytes(transfer, works, sizes, rates, rows)
    return transfer.count * rates.send_s(prices, move.kind, move.axes, n_bytes, sizes)


def sent_bytes(
    transfer: Transfer, works: Forward, sizes: Mapping[str, Num], rates: ServeRates, rows: Num
) -> Num:
    """Bytes of the array of one collective, summed over the shards that it joins."""
    move = transfer.move
    given = {**transfer.sizes, "B": rows}
    is_weight = move.before.name in works.weights
    element = rates.weight_bytes if is_weight else ACTIVATION_BYTES
    n_bytes = move.joined_bytes(given, sizes, element)
    if is_weight and len(move.before.dims) == 3 and move.before.dims[0].name == "E":
        n_bytes = n_bytes / sizes["expert"]
    return n_bytes


def _elementwise_s(
    config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num], rates: ServeRates, load: Load
) -> Num:
    if rates.ideal:
        return 0.0
    rows = rows_here(form, sizes, load.rows)
    routed = sum(g.count for g in config.groups if isinstance(g.layer.ffn, Moe))
    n_bytes = rows * elementwise_bytes(config, sizes["tensor"])
    return n_bytes / rates.hbm + routed * rates.shares.routed_s
