"""Time of one forward pass of an engine, in total and by activity. Book §7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.items import PricedItem
from shardwise.estimate.routing import is_routed
from shardwise.estimate.serving.attention import attention_items, attention_time
from shardwise.estimate.serving.chip_rates import (
    ACTIVATION_BYTES,
    ServeRates,
    input_and_output_bytes,
)
from shardwise.estimate.serving.compiled_shapes import CompiledShapes
from shardwise.estimate.serving.extra_traffic import batch_shards, extra_traffic, local_rows
from shardwise.estimate.serving.launches import elementwise_bytes, kernel_launches
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.measured_rates import padded_keys
from shardwise.estimate.serving.priced_engine import PricedEngine
from shardwise.formulas.experts import busiest_share, hit_share, skewed_hit_share
from shardwise.ops.program import Matmul, Transfer
from shardwise.strategy.layout import expert_degree, expert_sharers

LOGIT_BYTES = 4.0
# Fields of `PassTime` that are seconds.
ADDED = (
    "matmuls",
    "decode_attention",
    "prefill_attention",
    "elementwise",
    "kernels",
    "head",
    "draws",
    "host",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Seconds of one pass by activity; `step_s` is the expected total.

    Args:
        matmuls: matmuls of the layers.
        decode_attention: attention and SSM scans of the decoding sequences.
        prefill_attention: attention and SSM scans of the prompts.
        elementwise: norms, rotary embeddings, activation functions, routing.
        kernels: gaps between kernels.
        traffic: mesh role -> seconds of its collectives.
        head: unembedding.
        host: host work during which the chips are idle.
        draws: drawing tokens from logits, where it was measured.
        overlaps: whether collectives run at the same time as all work on the chip.
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
    draws: Num = 0.0

    def __add__(self, other: PassTime) -> PassTime:
        """The time of both, one after the other."""
        sums = {}
        for name in ADDED:
            sums[name] = getattr(self, name) + getattr(other, name)
        traffic = {
            role: self.traffic.get(role, 0.0) + other.traffic.get(role, 0.0)
            for role in {**self.traffic, **other.traffic}
        }
        return replace(self, traffic=traffic, **sums)

    @property
    def local_s(self) -> Num:
        """Seconds without collectives and host work."""
        layers = self.matmuls + self.decode_attention + self.prefill_attention + self.elementwise
        return layers + self.kernels + self.head + self.draws

    @property
    def comm_s(self) -> Num:
        """Seconds of all collectives."""
        return sum(self.traffic.values(), 0.0)

    @property
    def exposed_comm_s(self) -> Num:
        """Seconds of collectives that no work on the chip hides."""
        if self.overlaps:
            return maximum(self.comm_s - self.local_s, 0.0)
        return self.comm_s

    @property
    def step_s(self) -> Num:
        """Expected seconds of the pass."""
        return self.local_s + self.exposed_comm_s + self.host


def pass_time(engine: PricedEngine, load: Load) -> PassTime:
    """Estimate the time of one pass.

    Args:
        engine: an engine with one layout, or with arrays of layouts.
        load: sequences and tokens of the pass; in a pipeline, of one of the batches in flight.
    """
    parts = [program_time(engine, part) for part in programs(engine.rates, load)]
    # Each shard of the batch has its own scheduler on a host.
    rank_sequences = load.n_decoding / batch_shards(engine.layout, engine.mesh)
    rank_sequences = rank_sequences + (load.prefill_tokens > 0)
    overhead = engine.rates.overhead
    host = overhead.pass_s + overhead.sequence_s * rank_sequences
    return replace(sum(parts[1:], parts[0]), host=host)


def program_time(engine: PricedEngine, load: Load) -> PassTime:
    """Estimate the time of the chips' work in one program of a pass."""
    rates = engine.rates
    attention = attention_time(engine, load)
    traffic: dict[str, Num] = {}
    for item in collectives(engine, load):
        role = str(item.role)
        traffic[role] = traffic.get(role, 0.0) + item.seconds
    return PassTime(
        matmuls=sum((item.seconds for item in layer_matmuls(engine, load)), 0.0),
        decode_attention=attention.decode_s,
        prefill_attention=attention.prefill_s,
        elementwise=_elementwise_s(engine, load),
        kernels=_kernels_s(engine, load),
        traffic=traffic,
        head=sum((item.seconds for item in head_matmuls(engine, load)), 0.0),
        draws=_draws_s(engine, load),
        host=0.0,
        overlaps=rates.overhead.overlaps,
    )


def pass_items(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Matmuls, attention and collectives of one pass on the busiest chip of one engine."""
    for part in programs(engine.rates, load):
        yield from layer_matmuls(engine, part)
        yield from attention_items(engine, part)
        yield from head_matmuls(engine, part)
        yield from collectives(engine, part)


def activation_bytes(engine: PricedEngine, load: Load) -> Num:
    """Bytes of activations that matmuls and element-wise kernels move on the busiest chip.

    Operations at peak rates leave them out.
    """
    matmuls = [(matmul, load.rows) for matmul in engine.program.matmuls]
    matmuls += [(matmul, load.head_rows) for matmul in engine.program.head_matmuls]
    total = _elementwise_bytes(engine, load)
    for matmul, n_rows in matmuls:
        sizes = {**matmul.sizes, "B": n_rows}
        total = total + matmul.count * input_and_output_bytes(matmul, sizes, engine.mesh)
    return total


def programs(rates: ServeRates, load: Load) -> list[Load]:
    """The loads of the programs that run a pass: one, but in this package's engine.

    It runs decoding sequences and prompts one after the other, and pads the tokens of a prompt.
    """
    if not rates.measured:
        return [load]
    shapes = CompiledShapes(
        max_sequences=1, max_tokens=min(rates.overhead.max_tokens, rates.job.context)
    )
    n_decoding = load.n_decoding
    prefill_tokens = shapes.padded(load.prefill_tokens)
    n_sampled = load.head_rows
    decode_sampled = minimum(n_sampled, n_decoding * load.tokens_per_sequence)
    decode = Load(
        n_decoding=n_decoding,
        kv_tokens=n_decoding * padded_keys(load.mean_context),
        tokens_per_sequence=load.tokens_per_sequence,
        n_sampled=decode_sampled,
    )
    prompts = Load(
        prefill_tokens=prefill_tokens,
        query_key_pairs=prefill_tokens * padded_keys(load.prefill_length),
        n_sampled=n_sampled - decode_sampled,
    )
    return [decode, prompts]


def layer_matmuls(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Matmuls of the layers."""
    for matmul in engine.program.matmuls:
        yield _priced_matmul(engine, matmul, load.rows, head=False)


def head_matmuls(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Matmuls of the unembedding."""
    for matmul in engine.program.head_matmuls:
        yield _priced_matmul(engine, matmul, load.head_rows, head=True)


def collectives(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """All collectives of one pass: those that the sharding algebra derives, then the others."""
    for transfer in engine.program.transfers:
        yield _priced_transfer(engine, transfer, load.rows)
    for transfer in engine.program.head_transfers:
        yield _priced_transfer(engine, transfer, load.head_rows)
    yield from extra_traffic(engine, load)


def _priced_matmul(engine: PricedEngine, matmul: Matmul, rows: Num, *, head: bool) -> PricedItem:
    elements, n_experts = _weights_read(engine, matmul, rows)
    item = engine.rates.matmul(matmul, rows, engine.mesh, elements, groups=n_experts, head=head)
    if not matmul.program.einsum.chosen or not _prefers_experts(engine):
        return item
    # All chips wait for the one whose experts have most tokens.
    busiest = busiest_share(
        matmul.sizes["E"], expert_degree(engine.layout.expert_tensor, engine.mesh)
    )
    return replace(item, flops_per_s=item.flops_per_s / busiest)


def _weights_read(engine: PricedEngine, matmul: Matmul, rows: Num) -> tuple[Num, Num]:
    """(weight elements, experts) that a chip reads in one occurrence of a matmul.

    Of the routed experts, only those that at least one token chose are read.
    """
    mesh = engine.mesh
    sizes = {**matmul.sizes, "B": rows}
    elements = matmul.program.local.right.local_elements(sizes, mesh)
    if not matmul.program.einsum.chosen:
        return elements, 1.0
    active_share = active_experts(engine, sizes["E"], sizes["R"], maximum(rows, 1))
    n_experts = maximum(
        1.0, sizes["E"] * active_share / expert_degree(engine.layout.expert_tensor, mesh)
    )
    return elements * active_share / mesh["expert"], n_experts


def active_experts(engine: PricedEngine, n_experts: Num, chosen: Num, tokens: Num) -> Num:
    """Expected share of the experts that at least one token of a pass chooses."""
    if _prefers_experts(engine):
        return skewed_hit_share(n_experts, chosen, tokens)
    return hit_share(n_experts, chosen, tokens)


def _prefers_experts(engine: PricedEngine) -> bool:
    """Whether the tokens of a pass prefer some experts.

    Routers with a bias that corrects for load keep experts about equally popular. Others balance
    the load over large batches of mixed text alone.
    """
    moe = engine.config.moe
    rates = engine.rates
    return not (rates.ideal or rates.measured or (moe and moe.routing.correction))


def _priced_transfer(engine: PricedEngine, transfer: Transfer, rows: Num) -> PricedItem:
    """Price a collective of the program in a pass of `rows` tokens."""
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


def _kernels_s(engine: PricedEngine, load: Load) -> Num:
    """Seconds between kernels."""
    rates = engine.rates
    if rates.measured:
        layers_s = engine.config.n_layers * rates.chip.need("serving.layer")
        return where(load.rows > 0, layers_s, 0.0)
    gap_s = rates.efficiency.kernel_s * rates.overhead.gap
    return kernel_launches(engine.config, load) * gap_s


def _draws_s(engine: PricedEngine, load: Load) -> Num:
    """Seconds of drawing tokens, where it was measured; elsewhere it is part of the host's work."""
    rates = engine.rates
    if not rates.measured:
        return 0.0
    n_bytes = load.head_rows * engine.config.vocab * LOGIT_BYTES
    return n_bytes / rates.chip.need("serving.logits")


def _elementwise_bytes(engine: PricedEngine, load: Load) -> Num:
    """Bytes that the element-wise kernels of a pass read and write on the busiest chip."""
    rows = local_rows(engine.layout, engine.mesh, load.rows)
    tensor = engine.mesh["tensor"]
    expert_shards = tensor / expert_sharers(engine.layout.expert_tensor, engine.mesh)
    return rows * elementwise_bytes(engine.config, tensor, expert_shards)


def _elementwise_s(engine: PricedEngine, load: Load) -> Num:
    """Seconds of the element-wise kernels and of routing; 0 at ideal rates."""
    config = engine.config
    rates = engine.rates
    if rates.ideal:
        return 0.0
    routed_layers = sum(n for _, n in config.moes)
    n_bytes = _elementwise_bytes(engine, load)
    if rates.measured:  # in fp32
        return 2 * n_bytes / rates.chip.need("serving.activations")
    n_bytes = n_bytes * rates.overhead.elementwise
    return n_bytes / rates.hbm_bytes_per_s + routed_layers * rates.efficiency.routed_s
