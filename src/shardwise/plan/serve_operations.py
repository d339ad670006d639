"""The operations of a decoding pass and of a prompt, at peak rates: the roofline, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise.estimate.engine.engine import Engine
from shardwise.estimate.engine.load import Load
from shardwise.estimate.engine.passes import ACTIVATION_BYTES, sent_bytes, weights_read
from shardwise.ops import collective
from shardwise.ops.einsum import shards
from shardwise.ops.program import Matmul, Transfer
from shardwise.plan.value import Operation

HEAD_BYTES = 2.0  # of an unembedding's weight: it stays in 16 bits

# What a pass sends beside what the algebra derives: role -> (name, expression, collective).
BESIDE = {
    "tensor": ("attn.exchange", "queries to the chips of their caches, results back", "all_to_all"),
    "context": ("attn.join", "keys of prompts gathered, partial results joined", "all_gather"),
    "expert": ("moe.exchange", "tokens to experts and back", "all_to_all"),
    "pipe": ("stage.send", "activations to the next stage", "permute"),
}


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
    sent = [*((t, load.rows) for t in works.transfers)]
    sent += [(t, load.head_rows) for t in works.head_transfers]
    moved = [op for t, rows in sent if (op := _transfer(engine, t, rows, phase)).time_s > 0]
    return (
        *layers,
        *_attention(engine, load, phase),
        *head,
        *moved,
        *_beside(engine, load, moved, phase),
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
        yield _operation(
            name="attn.caches",
            phase=phase,
            expression="queries against the keys and values of earlier tokens",
            count=n_layers,
            hbm_bytes=caches * rates.hbm,
            time_s=caches,
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


def _transfer(engine: Engine, transfer: Transfer, rows: float, phase: str) -> Operation:
    sizes, move = engine.layout.sizes, transfer.move
    n_bytes = float(sent_bytes(transfer, engine.works, sizes, engine.rates, rows))
    seconds = engine.rates.send_s(engine.prices, move.kind, move.axes, n_bytes, sizes)
    received = collective.received_bytes(move.kind, n_bytes, shards(move.axes, sizes))
    return _operation(
        name=transfer.name,
        phase=phase,
        expression=str(move),
        count=transfer.count,
        collective=move.kind,
        role=transfer.role,
        network_bytes=transfer.count * float(received),
        time_s=transfer.count * float(seconds),
    )


def _beside(
    engine: Engine, load: Load, moved: Sequence[Operation], phase: str
) -> Iterator[Operation]:
    """What is sent beside the derived collectives, each role as one operation."""
    for role, seconds in engine.pass_time(load).traffic.items():
        derived = sum(op.time_s for op in moved if op.role == role)
        left = float(seconds) - derived
        if left > 1e-9 * float(seconds) and role in BESIDE:
            name, expression, kind = BESIDE[role]
            rows = load.rows * engine.config.d_model * ACTIVATION_BYTES
            yield _operation(
                name=name,
                phase=phase,
                expression=expression,
                count=engine.config.n_layers,
                collective=kind,
                role=role,
                network_bytes=rows if role == "pipe" else 0.0,
                time_s=left,
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
    )
