"""The operations of a decoding pass and of a prompt, at peak rates: the roofline, item by item."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.estimate.serving.attention import cache_flops
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import exchanges
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.pass_time import sent_bytes, weights_read
from shardwise.estimate.training.extra_traffic import Sent
from shardwise.ops import collective
from shardwise.ops.einsum import shards
from shardwise.ops.program import Matmul
from shardwise.plan.schema.training import Operation

HEAD_BYTES = 2.0  # of an unembedding's weight: it stays in 16 bits


def operations(engine: Engine, load: Load, phase: str) -> tuple[Operation, ...]:
    """Every work of one pass on the busiest chip; times are of all `count` occurrences together.

    Args:
        engine: at peak rates, so that the times add up to the roofline of the pass.
        load: what the pass computes.
        phase: `decode` or `prefill`.
    """
    works = engine.works
    head = [_matmul(engine, m, load.head_rows, phase, head=True) for m in works.head_matmuls]
    layers = [_matmul(engine, m, load.rows, phase, head=False) for m in works.matmuls]
    return (
        *layers,
        *_attention(engine, load, phase),
        *head,
        *_collectives(engine, load, phase),
    )


def _matmul(engine: Engine, matmul: Matmul, rows: float, phase: str, *, head: bool) -> Operation:
    sizes, rates = engine.layout.sizes, engine.rates
    given = {**matmul.sizes, "B": rows}
    elements, groups = weights_read(matmul, engine.layout, sizes, rows)
    flops = matmul.count * float(matmul.program.local_flops(given, sizes))
    element = HEAD_BYTES if head else rates.weight_bytes
    n_bytes = matmul.count * float(elements) * element
    one = rates.product_s(matmul, given, sizes, elements, groups=groups, head=head)
    return _operation(
        name=matmul.name,
        phase=phase,
        expression=str(matmul.program.local),
        count=matmul.count,
        flops=flops,
        hbm_bytes=n_bytes,
        time_s=matmul.count * float(one),
        math_s=flops / rates.chip.peak(rates.dtype(head=head)),
        hbm_s=n_bytes / rates.hbm,
    )


def _attention(engine: Engine, load: Load, phase: str) -> Iterator[Operation]:
    """Attention over caches and over prompts, as the pass prices them."""
    time = engine.pass_time(load)
    rates, n_layers = engine.rates, engine.config.n_layers
    caches, prompts = float(time.caches), float(time.prompts)
    if caches > 0:
        layout, sizes = engine.layout, engine.layout.sizes
        flops = sum(
            n * float(cache_flops(a, layout, sizes, load)) for a, n in engine.config.attentions
        )
        yield _operation(
            name="attn.caches",
            phase=phase,
            expression="queries against the keys and values of earlier tokens",
            count=n_layers,
            flops=flops,
            hbm_bytes=caches * rates.hbm,
            time_s=caches,
            math_s=flops / rates.attention_flops_per_s,
            hbm_s=caches,
        )
    if prompts > 0:
        yield _operation(
            name="attn.prompts",
            phase=phase,
            expression="causal attention of the prompt",
            count=n_layers,
            flops=prompts * rates.attention_flops_per_s,
            time_s=prompts,
            math_s=prompts,
        )


def _collectives(engine: Engine, load: Load, phase: str) -> Iterator[Operation]:
    """What the algebra derives, and what is sent beside it."""
    works, sizes = engine.works, engine.layout.sizes
    moved = [*((t, load.rows) for t in works.transfers)]
    moved += [(t, load.head_rows) for t in works.head_transfers]
    for transfer, rows in moved:
        sent = Sent(
            name=transfer.name,
            phase=phase,
            role=transfer.role,
            kind=transfer.move.kind,
            axes=transfer.move.axes,
            what=transfer.move,
            count=transfer.count,
            n_bytes=float(sent_bytes(transfer, works, sizes, engine.rates, rows)),
        )
        yield from _sent(engine, sent, phase)
    for sent in exchanges(engine.config, engine.layout, sizes, load):
        yield from _sent(engine, sent, phase)


def _sent(engine: Engine, sent: Sent, phase: str) -> Iterator[Operation]:
    """Nothing over one chip, or where nothing is sent."""
    sizes = engine.layout.sizes
    axes = tuple(axis for axis in sent.axes if sizes[axis] > 1)
    if not axes or sent.count <= 0 or sent.n_bytes <= 0:
        return
    one = engine.rates.send_s(engine.prices, sent.kind, sent.axes, sent.n_bytes, sizes)
    joined = float(sent.count * sent.n_bytes)
    yield _operation(
        name=sent.name,
        phase=phase,
        expression=sent.text(axes),
        count=int(sent.count),
        collective=sent.kind,
        role=sent.role,
        network_bytes=float(collective.received_bytes(sent.kind, joined, shards(axes, sizes))),
        joined_bytes=joined,
        axes=axes,
        time_s=float(sent.count * one),
    )


def _operation(
    *,
    name: str,
    phase: str,
    expression: str,
    count: int,
    time_s: float,
    flops: float = 0.0,
    hbm_bytes: float = 0.0,
    collective: str | None = None,
    role: str | None = None,
    network_bytes: float = 0.0,
    joined_bytes: float = 0.0,
    axes: tuple[str, ...] = (),
    math_s: float = 0.0,
    hbm_s: float = 0.0,
) -> Operation:
    return Operation(
        name=name,
        phase=phase,
        expression=expression,
        count=count,
        flops=flops,
        hbm_bytes=hbm_bytes,
        collective=collective,
        role=role,
        network_bytes=network_bytes,
        time_s=time_s,
        math_s=math_s,
        hbm_s=hbm_s,
        hidden=False,
        joined_bytes=joined_bytes,
        axes=axes,
    )
