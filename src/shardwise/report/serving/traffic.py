"""What simulated requests of a serving plan see: three or four lines, and a table under -v."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.plan.schema.traffic import TrafficEstimate
from shardwise.report.style import Block, strong, table
from shardwise.report.words import percent, signed_percent

OFF = 0.1  # an answer by means that differs by more is told
ms = units.show_seconds


def seen(told: TrafficEstimate) -> Iterator[tuple[str, str]]:
    """Percentiles against the bounds, the load, where means are wrong, and the largest rate."""
    ttft, tpot = told.ttft_s, told.tpot_s
    first = f"first token {ms(ttft.p50)} at p50, {ms(ttft.p99)} at p99"
    each = f"each further one {ms(tpot.p50)}, {ms(tpot.p99)}"
    yield "users", f"{first}{_bound(told.ttft_bound_s)}; {each}{_bound(told.tpot_bound_s)}"
    yield "", f"{_within(told)}, of {told.requests:,} simulated requests, {arriving(told)}"
    yield "load", _load(told)
    if wrong := off(told):
        yield "means", wrong
    if told.capacity:
        rate, mean = _rate(told.capacity.rate), _rate(told.capacity.mean_field_rate)
        yield "most", f"{rate} requests/s keep the bounds at {_at(told)}; by means {mean}"


def arriving(told: TrafficEstimate) -> str:
    """`Poisson, 20/s`, `bursty (CV 2), 20/s`, `as in day.csv, 3.2/s`."""
    kinds = {
        "poisson": "Poisson",
        "bursty": f"bursty (CV {told.variation:g})",
        "trace": f"as in {told.source}",
    }
    return f"{kinds.get(told.kind, told.kind)}, {_rate(told.rate)}/s"


def off(told: TrafficEstimate) -> str:
    """Where the answer by means is wrong; empty where it is not."""
    means = told.mean_field
    parts = [
        f"{name} {ms(mean)} for {ms(simulated)} ({signed_percent(share)})"
        for name, mean, simulated, share in (
            ("first token", means.ttft_s, told.ttft_s.mean, means.ttft_off),
            ("each further one", means.tpot_s, told.tpot_s.mean, means.tpot_off),
        )
        if abs(share) > OFF
    ]
    return f"of full engines, without queues, are off: {', '.join(parts)}" if parts else ""


def _bound(seconds: float | None) -> str:
    return f" (≤ {ms(seconds)})" if seconds else ""


def _within(told: TrafficEstimate) -> str:
    if not told.ttft_bound_s and not told.tpot_bound_s:
        return "no bound was asked for"
    both = "both" if told.ttft_bound_s and told.tpot_bound_s else "it"
    asked = f"{percent(told.at)} asked" if told.holds else f"not the {percent(told.at)} asked"
    return f"{percent3(told.within)} within {both} ({asked}), {_rate(told.goodput)}/s"


def percent3(share: float) -> str:
    """`99.7 %`."""
    return f"{units.significant(100 * share, 3)} %"


def _load(told: TrafficEstimate) -> str:
    n = told.preemptions
    preempted = f"{n:,} preemption{'' if n == 1 else 's'}" if n else "no preemption"
    hits = f", {percent(told.hit_rate)} of prompts cached" if told.hit_rate else ""
    part = f"; {percent(told.simulated)} of the engines simulated" if told.simulated < 1 else ""
    return (
        f"waiting {ms(told.queue_s.p50)} at p50, {ms(told.queue_s.p99)} at p99; passes run "
        f"{percent(told.utilisation)} of the time; KV cache {percent(told.kv_use)} (peak "
        f"{percent(told.kv_peak)}), {preempted}{hits}{part}"
    )


def _at(told: TrafficEstimate) -> str:
    return f"p{100 * told.at:g}"


def _rate(value: float) -> str:
    return units.significant(value, 3)


def tables(told: TrafficEstimate) -> Iterator[Block]:
    """Every percentile, and the deployments that were simulated before."""
    yield ""
    yield strong(f"Simulated requests: {arriving(told)}, seed {told.seed}")
    rows = (
        ("first token", told.ttft_s),
        ("each further one", told.tpot_s),
        ("whole answer", told.latency_s),
        ("waiting", told.queue_s),
    )
    yield table(
        ["", ">mean", ">p50", ">p90", ">p99"],
        [[f"  {name}", ms(s.mean), ms(s.p50), ms(s.p90), ms(s.p99)] for name, s in rows],
    )
    if told.tried:
        heads = ["simulated before", ">chips", ">within"]
        rows_tried = [[f"  {t}", f"{t.n_chips:,}", percent3(t.within)] for t in told.tried]
        yield table(heads, rows_tried)
    if told.capacity:
        pairs = [[f"  {_rate(r)}/s", percent3(share)] for r, share in told.capacity.tried]
        yield table(["rate", ">within"], pairs)
