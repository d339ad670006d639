"""An operation of a compiled program, explained."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.check.explained.bounds import LowerBound
from shardwise.check.explained.operation import (
    ExplainedCollective,
    Explanation,
    ModelPart,
    Product,
)
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.report.hlo.arrays import array_rows, layout_rows
from shardwise.report.hlo.devices import device_rows
from shardwise.report.style import Block, label_first, labelled, printable, strong
from shardwise.report.words import counted, listed

FUSIONS = {
    "kLoop": "one loop over the elements of the result",
    "kInput": "a reduction, with work on its input",
    "kOutput": "a product or reduction, with work on its output",
    "kCustom": "a form that the compiler knows by name",
}
MAX_PRODUCTS = 4


def collective_name(kind: str) -> str:
    """The book's name of a collective: `AllGather`."""
    return DISPLAY_NAMES.get(kind, "Send")


def blocks(explained: Explanation) -> Iterator[Block]:
    """What the operation is; then its arrays, its work, and its part of the model."""
    yield strong(printable(_headline(explained)))
    rows = [*array_rows("result", explained.results, named=False)]
    operands = explained.operands if explained.opcode != "while" else ()  # those of the result
    rows += array_rows("reads", operands, named=True)
    rows += layout_rows((*explained.results, *operands))
    rows += _computed(explained)
    for collective in explained.collectives:
        rows += _collective(collective)
    rows += _part(explained.part)
    rows.append(("work", _work(explained)))
    if explained.bound:
        rows.append(("time", _bound(explained.bound, explained)))
    yield labelled((label, printable(text)) for label, text in rows)


def _headline(explained: Explanation) -> str:
    part = explained.part
    of_model = f": {part.operation}, {part.phase}" if part.operation else ""
    return f"%{explained.name} is {_what(explained)}{of_model}."


def _what(explained: Explanation) -> str:
    """The operation in a few words: `a fusion of a matmul and an AllGather`."""
    if explained.opcode == "while":
        return _loop(explained.n_trips)
    if explained.opcode.endswith("-done") and explained.operands:
        start = explained.operands[0].name
        return f"the wait for what %{start} starts"
    parts = []
    if explained.products:
        parts.append(_counted_products(explained.products))
    parts += [_with_article(collective_name(c.kind)) for c in explained.collectives]
    if explained.kernel:
        parts.append(f"the kernel {explained.kernel}")
    if explained.opcode != "fusion":
        return listed(parts) if parts else _with_article(explained.opcode)
    if explained.missing:
        return "a fusion, whose computation the text does not have"
    if parts:
        return f"a fusion of {listed(parts)}"
    return f"a fusion of {counted(sum(explained.others.values()), 'operation')} without a matmul"


def _loop(n_trips: int | None) -> str:
    if n_trips is None:
        return "a loop"
    return f"a loop of {counted(n_trips, 'trip')}"


def _counted_products(products: tuple[Product, ...]) -> str:
    noun = "convolution"
    if all(product.opcode != "convolution" for product in products):
        noun = "matmul"
    return f"a {noun}" if len(products) == 1 else counted(len(products), noun)


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def _computed(explained: Explanation) -> Iterator[tuple[str, str]]:
    """Labelled lines: the form of a fusion, its products, and its other work."""
    lines = []
    if explained.fusion_kind:
        kind = explained.fusion_kind
        root = f"; returns {_with_article(explained.root)}" if explained.root else ""
        lines.append(f"{kind}, {FUSIONS.get(kind, 'a fusion')}{root}")
    for product in explained.products[:MAX_PRODUCTS]:
        flops = units.show_rate(product.flops, "FLOP")
        lines.append(f"{' · '.join(product.operands)} → {product.result}: {flops}")
    if len(explained.products) > MAX_PRODUCTS:
        lines.append(f"and {len(explained.products) - MAX_PRODUCTS} more products")
    if explained.others:
        lines.append(", ".join(f"{n} {opcode}" for opcode, n in explained.others.items()))
    for name in explained.missing:
        lines.append(f"not in the text: %{name}")
    yield from label_first("computes", lines)


def _collective(collective: ExplainedCollective) -> Iterator[tuple[str, str]]:
    """Labelled lines: bytes and form of a collective, and its groups."""
    name = collective_name(collective.kind)
    text = (
        f"{name} of {units.show_bytes(collective.bytes)} in {collective.dtype} (the whole array); "
        f"each device receives {units.show_bytes(collective.received_bytes)}"
    )
    if collective.form == "sync":
        text += "; nothing overlaps with it"
    elif collective.done:
        overlapped = counted(collective.overlapped, "operation")
        text += f"; {overlapped} between %{collective.start} and %{collective.done}"
    yield "sends", text
    yield from device_rows(collective.devices)


def _part(part: ModelPart) -> Iterator[tuple[str, str]]:
    """Labelled lines: the planned operation, the einsum, the scopes, the line of the source."""
    lines = []
    if part.operation:
        planned = " or ".join(part.expressions)
        lines.append(f"{part.operation}, {part.phase}{': ' if planned else ''}{planned}")
    if part.einsum:
        lines.append(f'einsum "{part.einsum}"')
    if part.op_name:
        lines.append(part.op_name)
    yield from label_first("model", lines)
    if part.source:
        yield "source", part.source


def _work(explained: Explanation) -> str:
    """FLOPs and bytes of one run, and the number of runs."""
    amounts = []
    if explained.flops:
        amounts.append(units.show_rate(explained.flops, "FLOP"))
    if explained.elementwise:
        amounts.append(f"{units.show_count(explained.elementwise)} element-wise FLOPs")
    memory = "HBM" if explained.is_tiled else "memory"
    amounts.append(f"{units.show_bytes(explained.hbm_bytes)} of {memory} traffic")
    times = "once" if explained.n_runs == 1 else f"{explained.n_runs:,} times"
    if not explained.n_runs:
        return f"{', '.join(amounts)}; it does not run"
    return f"{', '.join(amounts)}; {times} in a run of the program"


def _bound(bound: LowerBound, explained: Explanation) -> str:
    """The lower bound of one run, and how each roof comes to it."""
    device = f"a device of {bound.chip}"
    if not bound.bound:
        return f"no lower bound on {device}: nothing to compute, to read or to send is known"
    seconds = units.show_seconds
    roofs = []
    if bound.math_s is not None and bound.flops_per_s:
        flops = units.show_rate(explained.flops, "FLOP")
        rate = units.show_rate(bound.flops_per_s, "FLOP/s")
        roofs.append(f"{flops} ÷ {rate} = {seconds(bound.math_s)}")
    if bound.hbm_s is not None and bound.hbm_bytes_per_s:
        rate = units.show_rate(bound.hbm_bytes_per_s, "B/s")
        roofs.append(f"{units.show_bytes(explained.hbm_bytes)} ÷ {rate} = {seconds(bound.hbm_s)}")
    if bound.network_s is not None:
        roofs.append(f"the collective on {bound.links} {seconds(bound.network_s)}")
    name = {"compute": "compute", "HBM": "HBM", "network": "the network"}[bound.bound]
    return f"at least {seconds(bound.seconds)} on {device}, {name} binds: {'; '.join(roofs)}"
