"""The compiler's verdict on a training plan, or on one step of a serving plan."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from shardwise import units
from shardwise.check.notes import CYCLES_NOTE
from shardwise.check.serving import ServingVerdict
from shardwise.check.verdict import CheckedCollective, CompiledNumbers, PeakArray, Proposal, Verdict
from shardwise.report.style import Block, label_first, labelled, quiet, strong, table
from shardwise.report.words import listed

COMPILERS = {"tpu": "XLA's TPU compiler", "gpu": "XLA's GPU compiler", "cpu": "XLA's CPU compiler"}
MAX_ARRAYS = 6  # rows of the table of arrays at the memory peak
# How a quantity is shown that is not a number of bytes.
QUANTITIES: dict[str, Callable[[float], str]] = {
    "time": units.show_seconds,
    "memory": units.show_gib,
    "FLOPs": lambda value: units.show_rate(value, "FLOP"),
}
FIX_HINT = "type  --fix to search for a plan that fits; --save FILE saves it"
SERVING_HINT = "plan again with a smaller --batch or --context, or with --dtype int8"
COMMAND_WIDTH = 74  # width in characters of a command that is printed to be copied


def blocks(verdict: Verdict, remedy: str = FIX_HINT) -> Iterator[Block]:
    """The verdict, tables of planned and compiled numbers, differences, memory, and proposals.

    Args:
        remedy: what to type if the plan does not fit.
    """
    yield strong(_headline(verdict))
    if verdict.note:
        yield verdict.note
    if verdict.deviations:
        yield labelled(_deviations(verdict))
    if verdict.compiled:
        yield table(["", ">plan", ">XLA", ">difference"], _numbers(verdict))
        if verdict.compiled.step_s and verdict.compiled.step_s.cycles is not None:
            yield quiet(CYCLES_NOTE)
    if verdict.collectives:
        headers = ["collectives", "", ">plan n", ">XLA n", ">plan", ">XLA", ">async"]
        yield table(headers, map(_collective, verdict.collectives))
        yield quiet("counts, then bytes received by a chip in a step; async: share that overlaps")
    if verdict.differences:
        texts = (difference.text for difference in verdict.differences)
        yield labelled(label_first("differs", texts))
    if verdict.compiled and verdict.largest:
        yield from memory(verdict.compiled, verdict.largest)
    if verdict.xla_flags:
        flags = (f"{flag.name}={flag.value}" for flag in verdict.xla_flags)
        yield labelled(label_first("xla", flags))
    if verdict.proposals:
        yield from _proposals(verdict.proposals)
    yield quiet(_hint(verdict, remedy))


def serving_blocks(verdict: ServingVerdict) -> Iterator[Block]:
    """The verdicts on the decode step and on the prefill step of a serving plan."""
    if verdict.decode.passed != verdict.prefill.passed:
        steps = {"decode": verdict.decode, "prefill": verdict.prefill}
        (passed,) = (name for name, step in steps.items() if step.passed)
        (failed,) = (name for name, step in steps.items() if not step.passed)
        yield strong(f"The {passed} step is proved, the {failed} step is not.")
    yield from blocks(verdict.decode, SERVING_HINT)
    yield from blocks(verdict.prefill, SERVING_HINT)


def _headline(verdict: Verdict) -> str:
    """One sentence with the answers: does it fit, send what is planned, take the planned time."""
    compiler = COMPILERS[verdict.compiler]
    plan = f"{verdict.name} on {verdict.hardware}"
    if verdict.verdict == "does not fit":
        return f"Does not fit: {compiler} runs out of memory on {plan}."
    answers = []
    unchecked = []
    if verdict.fits is None:
        unchecked.append("memory")
    else:
        answers.append("fits")
    if verdict.sends_as_planned:
        answers.append("sends the planned bytes within 10 %")
    elif verdict.verdict == "collectives missing":
        answers.append("leaves out planned collectives")
    else:
        answers.append("sends other bytes than planned")
    if verdict.takes_planned_time is None:
        unchecked.append("time")
    elif verdict.takes_planned_time:
        answers.append("takes no longer than its upper bound")
    else:
        answers.append("takes longer than its upper bound")
    answers += [
        f"has {deviation.quantity} far above the plan's"
        for deviation in verdict.deviations
        if deviation.is_worse and deviation.quantity in ("memory", "FLOPs", "HBM traffic")
    ]
    text = f"{plan} {listed(answers)}"
    if unchecked:
        text += f"; {listed(unchecked)} {'is' if len(unchecked) == 1 else 'are'} not checked"
    words = {"proved": "Proved", "holds": "Holds"}
    word = words.get(verdict.verdict, "Not proved")
    if word == "Proved" and unchecked:
        word = "Compiled"
    return f"{word} by {compiler}: {text}."


def _deviations(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Labelled lines: the figures that are far from the plan, and what makes the step slower."""
    figures = []
    for deviation in verdict.deviations:
        show = QUANTITIES.get(deviation.quantity, units.show_bytes)
        planned = show(deviation.planned)
        if deviation.quantity == "time":
            planned = f"at most {planned}"
        figures.append(
            f"{deviation.quantity} {show(deviation.compiled)}, {planned} planned"
            f"{_ratio(deviation.planned, deviation.compiled)}"
        )
    yield from label_first("off", figures)
    seconds = units.show_seconds
    causes = []
    for cause in verdict.causes:
        detail = f" ({cause.detail})" if cause.detail else ""
        causes.append(
            f"{cause.part}{detail}: {seconds(cause.compiled_s)}, {seconds(cause.planned_s)} planned"
        )
    yield from label_first("slower", causes)


def _ratio(planned: float, compiled: float) -> str:
    """The relative difference of two numbers in parentheses, as a factor where it is large."""
    if not planned:
        return ""
    ratio = compiled / planned
    if ratio >= 2:
        return f" (×{ratio:.3g})"
    return f" ({ratio - 1:+.0%})"


def _numbers(verdict: Verdict) -> Iterator[tuple[str, str, str, str]]:
    """Rows of name, planned value, compiled value and relative difference."""
    planned = verdict.planned
    compiled = verdict.compiled
    if compiled is None:
        return
    if compiled.peak_bytes is not None:
        yield _row("memory at peak", planned.peak_bytes, compiled.peak_bytes, units.show_gib)
        if compiled.capacity_bytes:
            yield ("  of", "", units.show_gib(compiled.capacity_bytes), "")
    if compiled.host_bytes:
        yield ("in host memory", "", units.show_gib(compiled.host_bytes), "")
    yield _row("FLOPs per chip", planned.flops, compiled.flops, show_flops)
    if compiled.hbm_bytes is not None:
        yield _row("HBM traffic", planned.hbm_bytes, compiled.hbm_bytes, units.show_bytes)
    if compiled.step_s:
        seconds = units.show_seconds
        yield _row("step, rooflines", planned.step_s.lower, compiled.step_s.roofline, seconds)
        cycles_s = compiled.step_s.cycles
        if cycles_s is not None:
            yield _row("step, expected / cycles", planned.step_s.expected, cycles_s, seconds)


def show_flops(value: float) -> str:
    """A number of FLOPs: `1.55 TFLOP`."""
    return units.show_rate(value, "FLOP")


def _row(
    name: str, planned: float, compiled: float, show: Callable[[float], str]
) -> tuple[str, str, str, str]:
    difference = f"{compiled / planned - 1:+.1%}" if planned else ""
    return (name, show(planned), show(compiled), difference)


def _collective(row: CheckedCollective) -> tuple[str, ...]:
    return (
        row.role,
        row.kind.replace("_", "-"),
        f"{row.planned_n:,}",
        f"{row.compiled_n:,}",
        units.show_bytes(row.planned_bytes),
        units.show_bytes(row.compiled_bytes),
        f"{row.asynchronous:.0%}" if row.compiled_n else "",
    )


def memory(compiled: CompiledNumbers, largest: tuple[PeakArray, ...]) -> Iterator[Block]:
    """The memory of a chip at its peak: bytes by category, then a table of the largest arrays."""
    categories = []
    for category, n_bytes in compiled.by_category.items():
        categories.append(f"{category} {units.show_gib(n_bytes)}")
    yield labelled([("holds", "  ·  ".join(categories))])
    yield table(["largest at the peak", "", ">n", ">all"], map(_peak_array, largest[:MAX_ARRAYS]))


def _peak_array(array: PeakArray) -> tuple[str, str, str, str]:
    shape = f"{array.shape} {array.letters}".strip()
    total = units.show_gib(array.n * array.bytes)
    return (array.name or array.category, shape, f"{array.n}", total)


def _proposals(proposals: tuple[Proposal, ...]) -> Iterator[Block]:
    headers = ["instead", "", ">plan", ">XLA", ">expected step"]
    yield table(headers, map(_proposal, proposals))
    for proposal in proposals:
        if proposal.note:
            yield f"{proposal.change}: {proposal.note}"
        if proposal.fits and proposal.command:
            yield from _command_lines(proposal.command)


def _command_lines(command: str) -> Iterator[str]:
    """A shell command in lines of COMMAND_WIDTH, continued with a backslash."""
    *lines, last = textwrap.wrap(
        command, COMMAND_WIDTH, initial_indent="  ", subsequent_indent="    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    for line in lines:
        yield f"{line} \\"
    yield last


def _proposal(proposal: Proposal) -> tuple[str, ...]:
    compiled = ""
    if proposal.compiled_bytes is not None:
        compiled = units.show_gib(proposal.compiled_bytes)
    return (
        proposal.change,
        proposal.verdict,
        units.show_gib(proposal.planned_bytes),
        compiled,
        units.show_seconds(proposal.step_s.expected),
    )


def _hint(verdict: Verdict, remedy: str) -> str:
    found = [proposal for proposal in verdict.proposals if proposal.fits]
    if found and not found[0].command:
        return "type  --save FILE beside --fix to save the plan that fits"
    if found:
        return "type  the command above to plan what fits, or --save FILE beside --fix"
    if verdict.proposals:
        return "none of the alternatives tried fits"
    if verdict.verdict == "does not fit":
        return remedy
    if verdict.compiled and verdict.compiled.step_s:
        return "type  --trace step.json.gz for a Perfetto timeline  ·  --json for all numbers"
    return "type  --json for all numbers"
