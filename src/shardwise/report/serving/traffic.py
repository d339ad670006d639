"""Latencies of simulated requests under a serving plan: a few lines, and tables for -v."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.plan.schema.traffic import TrafficEstimate
from shardwise.report.style import Block, strong, table
from shardwise.report.words import counted, duration, percent, signed_percent

LARGE_ERROR = 0.1  # relative; an estimate from mean times with a larger error is reported


def traffic_lines(traffic: TrafficEstimate) -> Iterator[tuple[str, str]]:
    """Labels and texts: TTFT, TPOT, goodput under the SLO, load, errors of means, highest rate."""
    ttft = traffic.ttft_s
    tpot = traffic.tpot_s
    p99 = f"{duration(ttft.p99)} at p99{_bound(traffic.ttft_bound_s)}"
    yield "TTFT", f"{duration(ttft.p50)} at p50, {p99}"
    p99 = f"{duration(tpot.p99)} at p99{_bound(traffic.tpot_bound_s)}"
    yield "TPOT", f"{duration(tpot.p50)} at p50, {p99}"
    yield (
        "SLO",
        f"{_goodput(traffic)}; {traffic.requests:,} simulated requests, {arrivals_text(traffic)}",
    )
    yield "load", _load(traffic)
    if errors := error_of_means(traffic):
        yield "means", errors
    if traffic.capacity:
        rate = _rate(traffic.capacity.rate)
        mean_rate = _rate(traffic.capacity.mean_field_rate)
        yield (
            "max",
            f"{rate} requests/s meet the SLO at {_percentile(traffic)} ({mean_rate} by means)",
        )


def arrivals_text(traffic: TrafficEstimate) -> str:
    """How requests arrive: `Poisson, 20/s`, `bursty (CV 2), 20/s`, `as in day.csv, 3.2/s`,
    `64 users in a closed loop: 5.2 requests/s`."""
    rate = _rate(traffic.rate)
    arrivals = {
        "poisson": "Poisson",
        "bursty": f"bursty (CV {traffic.variation:g})",
        "trace": f"as in {_recorded_part(traffic)}{traffic.source}",
    }
    text = f"{arrivals.get(traffic.kind, traffic.kind)}, {rate}/s"
    if traffic.users:
        text = f"{counted(traffic.users, 'user')} in a closed loop: {rate} requests/s"
    for name, limits in (("prompts", traffic.prompt), ("outputs", traffic.output)):
        if limits:
            text += f", {name} of {limits[0]:,} to {limits[1]:,} tokens"
    return text


def _recorded_part(traffic: TrafficEstimate) -> str:
    """The part of a long recording that was simulated: `the busiest part (...) of `."""
    if not traffic.part:
        return ""
    first, last = traffic.part
    return f"the busiest part (requests {first:,}–{last:,} of {traffic.recorded:,}) of "


def error_of_means(traffic: TrafficEstimate) -> str:
    """Large errors of the estimate from mean loads, without queues; empty without any."""
    mean_field = traffic.mean_field
    latencies = (
        ("TTFT", mean_field.ttft_s, traffic.ttft_s.mean, mean_field.ttft_off),
        ("TPOT", mean_field.tpot_s, traffic.tpot_s.mean, mean_field.tpot_off),
    )
    errors = []
    for name, estimate_s, simulated_s, error in latencies:
        if abs(error) > LARGE_ERROR:
            simulated = f"{duration(simulated_s)} simulated ({signed_percent(error)})"
            errors.append(f"{name} {duration(estimate_s)}, {simulated}")
    if not errors:
        return ""
    return f"from mean loads alone: {'; '.join(errors)}"


def _bound(seconds: float | None) -> str:
    """The bound of the SLO after a latency: ` (≤ 1 s)`; empty without one."""
    if not seconds:
        return ""
    return f" (≤ {duration(seconds)})"


def _goodput(traffic: TrafficEstimate) -> str:
    if not traffic.ttft_bound_s and not traffic.tpot_bound_s:
        return "no bounds"
    target = f"the target is {percent(traffic.at)}"
    if not traffic.holds:
        target = f"below the target of {percent(traffic.at)}"
    share = three_digit_percent(traffic.within)
    return f"met by {share} ({target}): goodput {_rate(traffic.goodput)}/s"


def three_digit_percent(share: float) -> str:
    """A share as percent with three significant digits: `99.7 %`."""
    return f"{units.significant(100 * share, 3)} %"


def _load(traffic: TrafficEstimate) -> str:
    preemptions = "no preemption"
    if traffic.preemptions:
        preemptions = counted(traffic.preemptions, "preemption")
    busy = f"engines busy {percent(traffic.utilisation)} of the time"
    cache = _cache_text(traffic.kv_use, traffic.kv_peak)
    if traffic.prefill_utilisation is not None:
        busy = (
            f"prefill engines busy {percent(traffic.prefill_utilisation)} of the time, decode "
            f"engines {percent(traffic.utilisation)}"
        )
        prefill = _cache_text(traffic.prefill_kv_use or 0.0, traffic.prefill_kv_peak or 0.0)
        cache = f"{prefill} and {cache}"
    text = (
        f"queueing {duration(traffic.queue_s.p50)} at p50, {duration(traffic.queue_s.p99)} at "
        f"p99; {busy}; KV cache {cache}, {preemptions}"
    )
    if traffic.hit_rate:
        text += f", {percent(traffic.hit_rate)} of prompts cached"
    if traffic.simulated < 1:
        text += f"; {percent(traffic.simulated)} of the engines simulated"
    return text


def _cache_text(mean: float, peak: float) -> str:
    return f"{percent(mean)} full (peak {percent(peak)})"


def _percentile(traffic: TrafficEstimate) -> str:
    return f"p{100 * traffic.at:g}"


def _rate(value: float) -> str:
    return units.significant(value, 3)


def tables(traffic: TrafficEstimate) -> Iterator[Block]:
    """Tables of latency percentiles, and of the deployments and rates that were simulated."""
    yield ""
    yield strong(f"Simulated requests: {arrivals_text(traffic)}, seed {traffic.seed}")
    latencies = {
        "TTFT": traffic.ttft_s,
        "TPOT": traffic.tpot_s,
        "end to end": traffic.latency_s,
        "queueing": traffic.queue_s,
    }
    rows = []
    for name, times in latencies.items():
        rows.append([f"  {name}", *map(duration, (times.mean, times.p50, times.p90, times.p99))])
    yield table(["", ">mean", ">p50", ">p90", ">p99"], rows)
    if traffic.tried:
        rows = [
            [f"  {row}", f"{row.n_chips:,}", three_digit_percent(row.within)]
            for row in traffic.tried
        ]
        yield table(["simulated deployments", ">chips", ">within the SLO"], rows)
    if traffic.capacity:
        rows = [
            [f"  {_rate(rate)}/s", three_digit_percent(share)]
            for rate, share in traffic.capacity.tried
        ]
        yield table(["rate", ">within the SLO"], rows)
