"""Progress and results of a training run: a summary of the plan, a line per step, the results."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.plan.schema.training import Plan
from shardwise.report.style import Block, labelled, quiet, strong
from shardwise.report.training.plan import LOSES_UPDATES, headline
from shardwise.report.words import counted, duration, percent, seconds_span
from shardwise.train.metrics import Run, StepRecord
from shardwise.train.tokenize import TokenizeSummary

# Header of a column in the lines of steps -> its width in characters, with a space before it.
_COLUMNS = {
    "loss": 9,
    "grad": 9,
    "rate": 8,
    "time": 9,
    "×plan": 7,
    "tokens/s": 9,
    "MFU %": 7,
    "GiB": 7,
    "left": 6,
}
_MAX_FRACTION = 9_999  # steps of the longest run whose lines show `step/steps`
SLOW = 1.3  # measured over planned seconds of a step from which its parts are worth a look
MINUTE = 60  # seconds, like HOUR and DAY
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def plan_summary(plan: Plan) -> str:
    """The headline of a plan and its expected step, to be printed before the run starts."""
    step = plan.step
    text = (
        f"{plan.model.name} on {plan.hardware.name}. {headline(plan)} Planned: "
        f"{duration(step.expected)} a step ({seconds_span(step.lower, step.upper)}), "
        f"{percent(plan.estimate.mfu)} MFU."
    )
    if plan.job.loses_updates:
        text += f" {LOSES_UPDATES}"
    return textwrap.fill(text, 80, break_on_hyphens=False) + "\n"


def step_headers(n_steps: int) -> str:
    """The line of headers above the lines of a run of `n_steps`."""
    return _row("step", n_steps, list(_COLUMNS))


def step_line(records: Sequence[StepRecord], planned_s: float) -> str:
    """The line of one or more steps: the last one's numbers, and mean times.

    It has at most 80 characters in runs of up to 99 million steps.

    Args:
        records: the steps since the line before.
        planned_s: seconds that the plan expects a step to take.
    """
    last = records[-1]
    mean_s = statistics.fmean(record.step_s for record in records)
    speed = last.step_s / mean_s  # of these steps, relative to the last one
    memory = ""
    if last.memory_bytes:
        memory = units.significant(last.memory_bytes / units.GiB)
    step = str(last.step)
    if last.steps <= _MAX_FRACTION:
        step += f"/{last.steps}"
    cells = [
        _loss(last),
        f"{last.grad_norm:.3g}",
        f"{last.learning_rate:.2g}",
        duration(mean_s),
        f"×{units.significant(mean_s / planned_s, 2)}",
        units.show_count(last.tokens_per_s * speed),
        units.significant(100 * last.mfu * speed, 2),
        memory,
        _remaining(last.eta_s),
    ]
    return _row(step, last.steps, cells)


def _loss(record: StepRecord) -> str:
    if record.bad:
        return "bad"
    if record.loss < 100:
        return f"{record.loss:.4f}"
    return f"{record.loss:.3g}"


def _row(step: str, n_steps: int, cells: Sequence[str]) -> str:
    width = len(str(n_steps))
    if n_steps <= _MAX_FRACTION:
        width += 1 + width
    text = f"{step:>{max(4, width)}}"
    for cell, cell_width in zip(cells, _COLUMNS.values(), strict=True):
        text += f" {cell:>{cell_width - 1}}"
    return text.rstrip()


def _loss_change(losses: Sequence[float]) -> str:
    """The mean losses of the first and the last tenth of the steps: one batch says little."""
    n_steps = max(1, len(losses) // 10)
    first = statistics.fmean(losses[:n_steps])
    last = statistics.fmean(losses[-n_steps:])
    text = f"the loss went from {first:.4f} to {last:.4f}"
    if n_steps > 1:
        text += f" (means of {n_steps:,} steps)"
    return text


def _remaining(seconds: float) -> str:
    """The remaining time in at most five characters: `58s`, `12m`, `3.2h`, `2.1d`."""
    if seconds < MINUTE:
        return f"{seconds:.0f}s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f}m"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.1f}h"
    return f"{seconds / DAY:.1f}d"


def blocks(run: Run, saved: str, plan: str) -> Iterator[Block]:
    """The summary of a run.

    Args:
        saved: the folder of its checkpoints.
        plan: the file of its plan.
    """
    if run.losses:
        signal = ""
        if run.ended != "done":
            signal = f" ({run.ended})"
        yield strong(f"{run.done:,} steps are done{signal}; {_loss_change(run.losses)}.")
    else:
        yield strong(f"{run.done:,} steps are done already.")
    rows = [("compiled", f"in {duration(run.compile_s)}")]
    if run.step_s:
        text = (
            f"{duration(run.step_s)} (median); planned {duration(run.planned)}: "
            f"×{run.step_s / run.planned:.2f}"
        )
        rows.append(("a step", text))
    if saved:
        rows.append(("saved", _checkpoint(run, saved)))
    yield labelled(rows)
    if run.step_s and run.step_s > SLOW * run.planned:
        trace = run.profile or f"{plan.removesuffix('.json')}.profile"
        recorded = "" if run.profile else f"shardwise profile {plan}; "
        yield quiet(f"type  {recorded}shardwise compare {plan} {trace}  for what takes longer")
    if run.sample is not None:
        yield quiet("sample from the model:")
        yield printable(run.sample)


def _checkpoint(run: Run, saved: str) -> str:
    if run.checkpoint is None:
        return f"no complete checkpoint, not step {run.done:,}"
    text = f"step {run.checkpoint:,} in {saved}"
    if run.checkpoint != run.done:
        text += f", not step {run.done:,}"
    return text


def printable(text: str) -> str:
    """`text` with `?` for characters that a terminal could take as commands."""
    safe = []
    for character in text:
        if not (character.isprintable() or character in "\n\t"):
            character = "?"
        safe.append(character)
    return "".join(safe)


def tokenized(result: TokenizeSummary, folder: str) -> Iterator[Block]:
    """The summary of tokenized documents.

    Args:
        folder: where the token shards are; empty if it is temporary.
    """
    text = f"{units.show_count(result.tokens)} tokens of {result.documents:,} documents"
    if folder:
        text += f" in {folder}"
    yield strong(f"{text}.")
    rows = [
        ("tokenizer", f"{result.tokenizer}, {result.vocab:,} tokens"),
        ("shards", f"{result.shards:,}"),
    ]
    if result.skipped:
        n_files = counted(len(result.skipped), "file")
        rows.append(("skipped", f"{n_files} not in UTF-8, such as {result.skipped[0]}"))
    yield labelled(rows)
    if folder:
        yield quiet(f"type  shardwise train plan.json --data {folder} --steps 100")
