"""What a run tells people: the plan's line, a line a step, what it came to."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from shardwise import units
from shardwise.plan.schema.training import Plan
from shardwise.report.style import Block, labelled, quiet, strong
from shardwise.report.training.plan import headline
from shardwise.report.words import percent, seconds_span
from shardwise.train.metrics import Run, StepRecord
from shardwise.train.tokenize import TokenizeSummary

# Columns of a step: what, and how wide.
_COLUMNS = (
    ("loss", 8),
    ("grad", 9),
    ("time (plan)", 23),
    ("tokens/s", 9),
    ("MFU", 7),
    ("memory", 9),
    ("left", 6),
)


def begin(plan: Plan) -> str:
    """The plan's line, before anything runs."""
    step = plan.step
    said = (
        f"{plan.model.name} on {plan.hardware.name}. {headline(plan)} Planned: "
        f"{units.show_seconds(step.expected)} a step ({seconds_span(step.lower, step.upper)}), "
        f"{percent(plan.estimate.mfu)} MFU."
    )
    return textwrap.fill(said, 80, break_on_hyphens=False) + "\n"


def heads(steps: int) -> str:
    """The names above the columns of steps."""
    return _row("step", steps, [name for name, _ in _COLUMNS])


def line(record: StepRecord) -> str:
    """One step: 80 columns up to 9,999 steps."""
    took = units.show_seconds(record.step_s)
    planned = seconds_span(record.lower, record.upper)
    unit = took.rpartition(" ")[2]
    if planned.endswith(f" {unit}"):
        planned = planned.removesuffix(f" {unit}")
    memory = units.show_gib(record.memory_bytes) if record.memory_bytes else ""
    loss = f"{record.loss:.4f}" if record.loss < 100 else f"{record.loss:.4g}"
    cells = [
        "bad" if record.bad else loss,
        f"{record.grad_norm:.3g}",
        f"{took} ({planned})",
        units.show_count(record.tokens_per_s),
        percent(record.mfu),
        memory,
        _short(record.eta_s),
    ]
    return _row(f"{record.step}/{record.steps}", record.steps, cells)


def _row(first: str, steps: int, cells: list[str]) -> str:
    width = max(4, 2 * len(str(steps)) + 1)
    rest = "".join(f"{c:>{w}}" for c, (_, w) in zip(cells, _COLUMNS, strict=True))
    return f"{first:>{width}}{rest}".rstrip()


def _short(seconds: float) -> str:
    """`58s`, `12m`, `3.2h`."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.1f}h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f}d"


def blocks(run: Run, saved: str) -> Iterator[Block]:
    """What a run came to."""
    n = len(run.losses)
    why = "" if run.ended == "done" else f" ({run.ended})"
    yield strong(
        f"{run.done:,} steps are done{why}; the loss went from {run.losses[0]:.4f} to "
        f"{run.losses[-1]:.4f}."
        if n
        else f"{run.done:,} steps are done already."
    )
    rows = [("compiled", f"in {units.show_seconds(run.compile_s)}")]
    if run.step_s:
        rows.append(
            (
                "a step",
                f"{units.show_seconds(run.step_s)} (median); planned "
                f"{units.show_seconds(run.planned)}: ×{run.step_s / run.planned:.2f}",
            )
        )
    if saved:
        last = "none is whole" if run.checkpoint is None else f"step {run.checkpoint:,} in {saved}"
        last += "" if run.checkpoint == run.done else f", not step {run.done:,}"
        rows.append(("saved", last))
    yield labelled(rows)
    if run.sample is not None:
        yield quiet("what the model writes:")
        yield readable(run.sample)


def readable(text: str) -> str:
    """Lines of text without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def tokenized(done: TokenizeSummary, folder: str) -> Iterator[Block]:
    """What was written of tokens, to a folder that has a name for later or none."""
    yield strong(
        f"{units.show_count(done.tokens)} tokens of {done.documents:,} documents"
        f"{f' in {folder}' if folder else ''}."
    )
    rows = [
        ("tokenizer", f"{done.tokenizer}, {done.vocab:,} tokens"),
        ("shards", f"{done.shards:,}"),
    ]
    if done.skipped:
        rows.append(
            ("left out", f"{len(done.skipped):,} files are no UTF-8 text, as {done.skipped[0]}")
        )
    yield labelled(rows)
    if folder:
        yield quiet(f"type  shardwise train plan.json --data {folder} --steps 100")
