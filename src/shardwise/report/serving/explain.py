"""An explanation of a serving plan on one screen: batches, thresholds, what buys what."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.plan.serving.changes import Change
from shardwise.plan.serving.explain import AtBatch, ServingExplanation, ServingWhatIf
from shardwise.report.serving.changes import difference_text, engine_text
from shardwise.report.serving.decisions import decision_text
from shardwise.report.serving.reasons import BOUNDS, reason_text
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import mesh_text, percent

ms = units.show_seconds
SIDES = {
    "weights": "weights",
    "flops": "FLOPs",
    "kv": "KV cache",
    "network": "network",
    "software": "kernels and host",
}
WORDS = ("tensor", "gathered")  # reasons of the plan that stand below its thresholds


def blocks(told: ServingExplanation, *, verbose: bool = False) -> Iterator[Block]:
    """The whole answer; `verbose` adds the decisions in words and the reasons of the plan."""
    if told.what_if:
        yield strong(_what_if(told.what_if, told.changes[0]))
    yield strong(headline(told))
    yield _batches(told)
    yield labelled(_thresholds(told))
    yield _changes(told)
    if verbose:
        yield ""
        yield strong("The way to this deployment, in the order of the book")
        yield labelled((decision.step, decision_text(decision)) for decision in told.path)
        yield labelled(("why" if i == 0 else "", reason_text(r)) for i, r in enumerate(told.why))
    else:
        last = 'type  -v tells the way there  ·  --what-if "ici x2" asks another machine'
        yield quiet(last)


def headline(told: ServingExplanation) -> str:
    """What binds and by how much, and the deployment."""
    here = next(row for row in told.batches if row.here)
    whole = sum(here.sides.values())
    listed = sorted(here.sides.items(), key=lambda side: -side[1])
    parts = ", ".join(f"{SIDES[k]} {percent(s / whole)}" for k, s in listed if s > 0.01 * whole)
    held, kv = told.precision["weights"], told.precision["kv"]
    dtypes = held if kv == held else f"{held}, KV {kv}"
    many = f"{told.mesh['data']:,} engines of " if told.mesh.get("data", 1) > 1 else ""
    engines = f"{many}{mesh_text({**told.mesh, 'data': 1})}"
    engines += " beside others for prompts" if told.disaggregated else ""
    return (
        f"Bound by {SIDES[told.bound]}, ×{told.margin:.2f} over the next: a pass of "
        f"{ms(here.step_s.expected)} is {parts}. {engines} "
        f"on {told.hardware}, {dtypes}, {told.batch:,} × {told.context:,.0f} tokens."
    )


def _what_if(found: ServingWhatIf, now: Change) -> str:
    asked = ", ".join(f"{name} ×{factor:g}" for name, factor in found.factors.items())
    change = percent(abs(found.same.tpot_s / now.tpot_s - 1))
    more = "more" if found.same.tpot_s > now.tpot_s else "less"
    text = f"{asked}: {ms(found.same.tpot_s)} a token, {change} {more}, now {BOUNDS[found.bound]}. "
    if found.same.max_batch < found.same.batch:
        text += f"{found.same.max_batch:,} sequences fit. "
    if found.best is None:
        return text + "No engine fits this batch there."
    return text + f"The best for this batch: {engine_text(found.best)}, {ms(found.best.tpot_s)}."


def _batches(told: ServingExplanation) -> Block:
    """The pass beside the token where prompts come in between; what is left of it then is rest."""
    money = _priced(told)
    both = any(row.tpot_s != row.step_s.expected for row in told.batches)
    heads = [">!batch", ">!token", *[">!pass"] * both, ">!weights", ">!KV", ">!network"]
    heads += [*[">!kernels"] * (not both), ">!/s/chip", *[">!$/M out"] * money, "!binds"]
    return table(heads, [_at(row, both=both, money=money) for row in told.batches])


def _at(row: AtBatch, *, both: bool, money: bool) -> list[str]:
    spent, usd = row.sides, row.usd_per_million_output_tokens
    whole = sum(spent.values())
    parts = [spent["weights"] + spent["flops"], spent["kv"], spent["network"]]
    parts += [spent["software"]] * (not both)
    return [
        f"{row.batch:,}",
        ms(row.tpot_s),
        *[ms(row.step_s.expected)] * both,
        *(f"{100 * part / whole:.0f} %" for part in parts),
        units.significant(row.tokens_per_s_per_chip),
        *[f"{usd or 0.0:,.2f}"] * money,
        {"kv": "KV", "software": "kernels"}.get(row.bound, SIDES[row.bound]) + " ←" * row.here,
    ]


def _thresholds(told: ServingExplanation) -> Iterator[tuple[str, str]]:
    own = told.critical[0]
    at = f"from batch {told.kv_batch:,}" if told.kv_batch else "at no batch"
    text = f"caches outweigh products {at}"
    text += f"; {told.max_batch:,} sequences of an engine fit"
    if own.kv_context:
        text += f"; at peaks they do at every batch from {own.kv_context:,.0f} tokens of context on"
    yield "KV", text + "."
    listed = ", ".join(
        f"{c.batch:,.0f} {f'{c.weights} weights ' * (c.weights != c.compute)}in {c.compute}"
        for c in told.critical
    )
    yield "FLOPs", f"bind products from so many sequences in a pass: {listed}."
    for reason in told.why:
        if reason.constraint in WORDS:
            yield {"tensor": "links", "gathered": "FSDP"}[reason.constraint], reason_text(reason)
    prefill = told.prefill
    text = f"{ms(prefill.step_s.expected)} each, at {percent(prefill.at_mfu.mfu)} MFU "
    text += ms(prefill.at_mfu.step_s)
    if prefill.servers and prefill.at_mfu.servers:
        text += (
            f": {prefill.servers:.2g} engines that read to one that generates, "
            f"{prefill.at_mfu.servers:.2g} at that MFU"
        )
    else:
        text += "; how many engines should read: give --prompt and --output"
    yield "prompts", text + "."


def _changes(told: ServingExplanation) -> Block:
    """What buys what: each row evaluated anew."""
    money, first = _priced(told), told.changes[0]
    together = not told.disaggregated  # else others read, and the first token is theirs
    heads = ["with", ">!token", ">!", *[">!first"] * together, ">!/s/chip"]
    heads += [*[">!$/M out"] * money, ">!fit"]
    rows = []
    for change in told.changes:
        usd = change.usd_per_million_output_tokens
        engine = engine_text(change)
        name = difference_text(change.differs) + (f": {engine}" if engine else "")
        same = change is first
        rows.append(
            [
                name,
                ms(change.tpot_s),
                "" if same else f"×{change.tpot_s / first.tpot_s:.2f}",
                *[ms(change.ttft_s)] * together,
                units.significant(change.tokens_per_s_per_chip),
                *[f"{usd or 0.0:,.2f}"] * money,
                f"{change.max_batch:,}",
            ]
        )
    return table(heads, rows)


def _priced(told: ServingExplanation) -> bool:
    return told.changes[0].usd_per_million_output_tokens is not None
