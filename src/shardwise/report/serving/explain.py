"""An explanation of a serving plan: its bound, other batches, thresholds, effects of changes."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.plan.schema.serving import Prefill
from shardwise.plan.serving.changes import Change
from shardwise.plan.serving.explain import AtBatch, ServingExplanation, ServingWhatIf
from shardwise.report.serving.changes import difference_text, engine_text
from shardwise.report.serving.decisions import decision_text
from shardwise.report.serving.reasons import BOUNDS, reason_text
from shardwise.report.style import Block, label_first, labelled, quiet, strong, table
from shardwise.report.words import dtypes_text, duration, mesh_text, percent

# Part of a decode step that can bind it -> its name in a sentence, and in a table.
SIDES = {
    "weights": "weights",
    "flops": "FLOPs",
    "kv": "KV cache",
    "network": "network",
    "software": "kernels and host",
}
SHORT_SIDES = SIDES | {"kv": "KV", "software": "kernels"}
SMALL_SIDE = 0.01  # of a decode step; shorter parts are left out of the headline
SHOWN_PARTS = 3  # of a prefill pass, the longest
# Constraint of a reason that is shown among the thresholds -> its label.
THRESHOLD_REASONS = {"tensor": "links", "gathered": "FSDP"}


def blocks(explanation: ServingExplanation, *, verbose: bool = False) -> Iterator[Block]:
    """The whole answer; `verbose` adds every decision and the reasons of the plan."""
    if explanation.what_if:
        yield strong(_what_if(explanation.what_if, explanation.changes[0]))
    yield strong(headline(explanation))
    yield _batches(explanation)
    yield labelled(_thresholds(explanation))
    yield _changes(explanation)
    if verbose:
        yield ""
        yield strong("Decisions that lead to this deployment, in the order of the book")
        yield labelled((decision.step, decision_text(decision)) for decision in explanation.path)
        yield labelled(label_first("why", map(reason_text, explanation.why)))
    else:
        yield quiet('type  -v for every decision  ·  --what-if "ici x2" for another machine')


def headline(explanation: ServingExplanation) -> str:
    """The bound of a decode step, its parts, what prompts take of TPOT, and the deployment."""
    current = next(row for row in explanation.batches if row.here)
    total_s = sum(current.sides.values())
    parts = []
    for name, seconds in sorted(current.sides.items(), key=lambda item: -item[1]):
        if seconds > SMALL_SIDE * total_s:
            parts.append(f"{SIDES[name]} {percent(seconds / total_s)}")
    engines = mesh_text({**explanation.mesh, "data": 1})
    if explanation.mesh.get("data", 1) > 1:
        engines = f"{explanation.mesh['data']:,} engines of {engines}"
    if explanation.disaggregated:
        engines += " with separate prefill engines"
    prompts = ""
    if current.prompts_s > SMALL_SIDE * current.tpot_s:
        prompts = (
            f" Prompts of other requests take {duration(current.prompts_s)} of the TPOT of "
            f"{duration(current.tpot_s)}."
        )
    return (
        f"Bound by {SIDES[explanation.bound]}, ×{explanation.margin:.2f} over the next: a decode "
        f"step of {duration(current.step_s.expected)} is {', '.join(parts)}.{prompts} {engines} "
        f"on {explanation.hardware}, {dtypes_text(explanation.precision)}, {explanation.batch:,} × "
        f"{explanation.context:,.0f} tokens."
    )


def _what_if(what_if: ServingWhatIf, current: Change) -> str:
    factors = ", ".join(f"{name} ×{factor:g}" for name, factor in what_if.factors.items())
    same = what_if.same
    change = percent(abs(same.tpot_s / current.tpot_s - 1))
    direction = "more" if same.tpot_s > current.tpot_s else "less"
    text = (
        f"{factors}: TPOT {duration(same.tpot_s)}, {change} {direction}, now "
        f"{BOUNDS[what_if.bound]}. "
    )
    if same.max_batch < same.batch:
        text += f"{same.max_batch:,} sequences fit. "
    if what_if.best is None:
        return text + "No engine on that machine fits this batch."
    best = what_if.best
    return text + f"The best for this batch: {engine_text(best)}, {duration(best.tpot_s)}."


def _batches(explanation: ServingExplanation) -> Block:
    """A table of batch sizes: TPOT, shares of the parts of a decode step, throughput, price.

    If prefills run between decode steps, TPOT is longer than a step. The table then shows the step
    instead of the share of kernels.
    """
    has_price = _has_price(explanation)
    interleaved = any(row.tpot_s != row.step_s.expected for row in explanation.batches)
    headers = [">!batch", ">!TPOT"]
    if interleaved:
        headers.append(">!step")
    headers += [">!weights", ">!KV", ">!network"]
    if not interleaved:
        headers.append(">!kernels")
    headers.append(">!tok/s/chip")
    if has_price:
        headers.append(">!$/M out")
    headers.append("!bound")
    rows = []
    for row in explanation.batches:
        rows.append(_batch_cells(row, interleaved=interleaved, has_price=has_price))
    return table(headers, rows)


def _batch_cells(row: AtBatch, *, interleaved: bool, has_price: bool) -> list[str]:
    sides = row.sides
    total_s = sum(sides.values())

    def share(seconds: float) -> str:
        return f"{100 * seconds / total_s:.0f} %"

    cells = [f"{row.batch:,}", duration(row.tpot_s)]
    if interleaved:
        cells.append(duration(row.step_s.expected))
    cells += [share(sides["weights"] + sides["flops"]), share(sides["kv"]), share(sides["network"])]
    if not interleaved:
        cells.append(share(sides["software"]))
    cells.append(units.significant(row.tokens_per_s_per_chip))
    if has_price:
        cells.append(f"{row.usd_per_million_output_tokens or 0.0:,.2f}")
    bound = SHORT_SIDES[row.bound]
    if row.here:
        bound += " ←"
    return [*cells, bound]


def _thresholds(explanation: ServingExplanation) -> Iterator[tuple[str, str]]:
    """Labels and texts: batches from which KV reads or FLOPs bind, limits, prefill engines."""
    yield "KV", _kv_threshold(explanation)
    batches = []
    for critical in explanation.critical:
        dtypes = critical.compute
        if critical.weights != critical.compute:
            dtypes = f"{critical.weights} weights and {dtypes} compute"
        batches.append(f"{critical.batch:,.0f} in {dtypes}")
    yield "FLOPs", f"matmuls are compute-bound from a batch of {', '.join(batches)}."
    for reason in explanation.why:
        if reason.constraint in THRESHOLD_REASONS:
            yield THRESHOLD_REASONS[reason.constraint], reason_text(reason)
    yield "prefill", _prefill(explanation.prefill)


def _prefill(prefill: Prefill) -> str:
    """The time of a prefill pass and what it consists of, and the prefill engines that it needs."""
    pass_s = prefill.step_s.expected
    at_mfu = prefill.at_mfu
    longest = sorted(prefill.parts, key=lambda part: -prefill.parts[part])[:SHOWN_PARTS]
    shares = [f"{part} {percent(prefill.parts[part] / pass_s)}" for part in longest]
    text = (
        f"{duration(pass_s)} a pass, MFU {percent(prefill.mfu)}, bound by {SIDES[prefill.bound]} "
        f"({', '.join(shares)}); {duration(at_mfu.step_s)} at {percent(at_mfu.mfu)} MFU"
    )
    if prefill.servers and at_mfu.servers:
        text += (
            f": {prefill.servers:.2g} prefill engines per decode engine of as many chips, "
            f"{at_mfu.servers:.2g} at that MFU"
        )
    else:
        text += "; pass --prompt and --output for the number of prefill engines"
    return f"{text}."


def _kv_threshold(explanation: ServingExplanation) -> str:
    text = "reads of the KV cache exceed reads of the weights "
    if explanation.kv_batch:
        text += f"from batch {explanation.kv_batch:,}"
    else:
        text += "at no batch"
    text += f"; {explanation.max_batch:,} sequences fit per engine"
    kv_context = explanation.critical[0].kv_context
    if kv_context:
        text += (
            f"; at peak rates KV reads bind every batch from {kv_context:,.0f} tokens of context"
        )
    return f"{text}."


def _changes(explanation: ServingExplanation) -> Block:
    """A table of changes of the deployment; the first row is the plan's own deployment."""
    has_price = _has_price(explanation)
    colocated = not explanation.disaggregated  # the TTFT of separate prefill engines stays
    headers = ["with", ">!TPOT", ">!"]
    if colocated:
        headers.append(">!TTFT")
    headers.append(">!tok/s\n/chip")
    if has_price:
        headers.append(">!$/M\nout")
    headers.append(">!max\nbatch")
    current = explanation.changes[0]
    rows = []
    for change in explanation.changes:
        name = difference_text(change.differs)
        if engine := engine_text(change):
            name += f": {engine}"
        ratio = ""
        if change is not current:
            ratio = f"×{change.tpot_s / current.tpot_s:.2f}"
        row = [name, duration(change.tpot_s), ratio]
        if colocated:
            row.append(duration(change.ttft_s))
        row.append(units.significant(change.tokens_per_s_per_chip))
        if has_price:
            row.append(f"{change.usd_per_million_output_tokens or 0.0:,.2f}")
        row.append(f"{change.max_batch:,}")
        rows.append(row)
    return table(headers, rows)


def _has_price(explanation: ServingExplanation) -> bool:
    return explanation.changes[0].usd_per_million_output_tokens is not None
