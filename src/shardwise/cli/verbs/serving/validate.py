"""The screen of `shardwise validate --serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardwise import units
from shardwise.report.style import Block, quiet, strong, table
from shardwise.report.words import percent, signed_percent
from shardwise.validate.serving.score import RATES, ServeErrors, ServeValidation

FIGURES = {
    "ttft_s": "TTFT", "tpot_s": "TPOT", "latency_s": "latency", "prefill_s": "prefill",
    "tokens_per_s": "tokens/s", "total_tokens_per_s": "tokens/s in+out",
    "tokens_per_s_per_user": "tokens/s/user", "memory_bytes": "memory",
}  # fmt: skip
SHOWN_SOURCES = 16
SHOWN_REASONS = 6


def blocks(found: ServeValidation, worst: int, everything: bool) -> Iterator[Block]:
    """Errors by kind of figure and by source, the worst figures, and why others are missing."""
    runs, figures = len(found.counted), sum(errors.n for errors in found.kinds)
    yield strong(f"{figures:,} figures of {runs:,} published serving runs, by what they tell of")
    yield table(
        ["", ">figures", ">median", ">mean", ">90 %", ">bias", ">interval", ">held back"],
        (_kind(errors, found.held_back) for errors in found.kinds),
    )
    yield table(
        ["source", "figure", ">n", ">median", ">mean", ">bias"],
        (_source(errors) for errors in found.sources[:SHOWN_SOURCES]),
    )
    if len(found.sources) > SHOWN_SOURCES:
        yield quiet(f"and {len(found.sources) - SHOWN_SOURCES} more (--json lists them)")
    if worst:
        yield strong("Worst figures")
        yield table(
            ["row", "figure", ">predicted", ">measured", ">error"],
            (
                [
                    row.id,
                    FIGURES[row.metric],
                    _shown(row.metric, row.predicted),
                    _shown(row.metric, row.measured),
                    signed_percent(row.err),
                ]
                for row in found.worst(worst)
            ),
        )
    if found.underivable:
        kinds = Counter(row.kind for row in found.underivable).most_common(SHOWN_REASONS)
        told = ", ".join(f"{kind} {n}" for kind, n in kinds)
        n = f"{len(found.underivable):,}"
        yield f"{n} rows or figures not predicted: {told} (--json says why of each)"
    rows = "all rows" if everything else "core rows of quality A and B (--all counts every row)"
    yield quiet(f"error = predicted / measured - 1 of seconds, a rate by those of a token; {rows}")


def _kind(errors: ServeErrors, held_back: tuple[ServeErrors, ...]) -> list[str]:
    other = [found.median_abs_err for found in held_back if found.name == errors.name]
    return [
        errors.name,
        f"{errors.n:,}",
        percent(errors.median_abs_err),
        percent(errors.mean_abs_err),
        percent(errors.p90_abs_err),
        signed_percent(errors.bias),
        percent(errors.interval_coverage),
        percent(other[0]) if other else "",
    ]


def _source(errors: ServeErrors) -> list[str]:
    return [
        errors.name,
        FIGURES[errors.metric],
        f"{errors.n:,}",
        percent(errors.median_abs_err),
        percent(errors.mean_abs_err),
        signed_percent(errors.bias),
    ]


def _shown(metric: str, value: float) -> str:
    if metric in RATES:
        return f"{units.show_count(value)}/s"
    return units.show_bytes(value) if metric == "memory_bytes" else units.show_seconds(value)
