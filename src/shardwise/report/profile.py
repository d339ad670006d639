"""The account of a measured step: where its time went."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from shardwise import units
from shardwise.check.hlo.scopes import BACKWARD
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.profile.categories import (
    ATTENTION,
    CALLBACK,
    CATEGORIES,
    COMMUNICATION,
    COPY,
    ELEMENTWISE,
    GAP,
    HOST,
    LOOP,
    MATMUL,
    WAIT,
)
from shardwise.profile.costs import HBM
from shardwise.profile.host import COMPILATION, DISPATCH, LOADING
from shardwise.profile.result import MemoryPeak, OperationTime, Profile
from shardwise.report.profile_hints import few_tokens, hints
from shardwise.report.style import Block, bar, label_first, labelled, quiet, strong, table
from shardwise.report.words import compiled_steps, counted, percent

LEAST_HOST = 0.1  # share of a step from which the first line says that the host holds it
LEAST_SHARE = 5e-4  # of exposed communication, in the first line
LEAST_WAIT = 0.01  # share of waiting for other devices, in the first line
N_HINTS = 2
N_ARRAYS = 4  # largest at the peak of memory
N_OPERATIONS = 10  # largest, on the screen; --json has all
N_CATEGORIES = 6  # beyond which each takes the place of an operation on the screen
NAME_WIDTH = 34  # characters
NAME_BESIDE_RATE = 22
NAME_BESIDE_ROOF = 20
TITLES = {
    MATMUL: "matmuls",
    ATTENTION: "attention",
    ELEMENTWISE: "elementwise, reductions",
    COPY: "copies, transposes",
    COMMUNICATION: "exposed communication",
    WAIT: "waiting for other devices",
    CALLBACK: "callbacks on the host",
    LOOP: "loops",
    GAP: "idle in the program",
    HOST: "idle between programs",
}
HOST_WORK = {LOADING: "the loading of data", DISPATCH: "the dispatch of programs"}
NOT_OPERATIONS = {LOOP, GAP, HOST}


def blocks(profile: Profile, written: str) -> Iterator[Block]:
    """The step in a line, its categories, its largest operations, and what is not known.

    Args:
        written: the file that was written for Perfetto; empty without one.
    """
    main_hint, *minor_hints = _hints(profile) or [""]
    yield strong(_headline(profile, main_hint))
    yield labelled([*_about(profile), *label_first("look at", minor_hints)])
    yield table(["category", ">a step", ">share", ""], _category_rows(profile))
    operations = [part for part in profile.operations if part.category not in NOT_OPERATIONS]
    n_categories = sum(part.seconds > 0 for part in profile.categories)
    operations = operations[: N_OPERATIONS - max(0, n_categories - N_CATEGORIES)]
    yield _operation_table(operations)
    if profile.chip:
        above = any((part.roof_s or 0.0) > part.seconds > 0 for part in operations)
        caches = ". Above 100 %: arrays in caches, or a faster moment than its measurement" * above
        yield quiet(
            f"of roof: of the peak FLOP/s or bytes/s of {profile.chip}, whichever binds{caches}"
        )
    if profile.memory:
        yield labelled(_memory_rows(profile.memory))
    if not profile.has_programs:
        yield (
            "The trace does not hold the compiled program, or no library of protocol buffers is "
            "installed (pip install protobuf): operations have the names of the compiler, and "
            "their categories are guessed from these."
        )
    if profile.most_frequent not in ("", profile.module) and profile.module:
        yield quiet(
            f"{counted(profile.n_programs, 'program')} ran, most often {profile.most_frequent}; "
            "--program NAME takes another one as the step"
        )
    if written:
        yield quiet(f"wrote {written}: open it at ui.perfetto.dev")


def document(profile: Profile) -> dict[str, Any]:
    """The account as JSON data, with the first line of the screen: the step and its main cause."""
    account = {field.name: getattr(profile, field.name) for field in fields(profile)}
    return {"headline": _headline(profile, *_hints(profile)[:1]), **account}


def short(profile: Profile) -> Iterator[Block]:
    """The first line of an account, and the command for the rest."""
    yield labelled([("profile", _headline(profile, *_hints(profile)[:1]))])
    yield quiet(f"type  shardwise profile {profile.trace}")


def _headline(profile: Profile, hint: str = "") -> str:
    """The step, with what to look at first or else its categories.

    Args:
        hint: on what to look at; empty if there is none.
    """
    seconds = units.show_seconds(profile.step_s)
    account = f"{seconds}. Look first at {hint}" if hint else f"{seconds}: {_shares(profile)}"
    if profile.module:
        return f"step {account}"
    no_step = (
        f"no program is the step: {profile.n_programs:,} programs run, most often "
        f"{profile.most_frequent}. Is the step jitted?"
    )
    return f"{no_step} {'Marked step' if profile.has_marked_steps else 'The whole trace'} {account}"


def _hints(profile: Profile) -> list[str]:
    """The hints that are shown. The first is empty if devices wait for the host: it says more.

    Steps of few tokens are too short to hide what the host does between them; then they come first.
    """
    shares = _category_shares(profile)
    waits = _is_host_bound(shares) or shares[CALLBACK] >= LEAST_HOST
    if _is_host_bound(shares) and _largest_wait(profile) not in (COMPILATION, LOADING):
        waits = not any(few_tokens(profile))
    return [*[""] * waits, *itertools.islice(hints(profile), N_HINTS)]


def _category_shares(profile: Profile) -> dict[str, float]:
    """Share of the step of each category."""
    return dict.fromkeys(CATEGORIES, 0.0) | {p.category: p.share for p in profile.categories}


def _is_host_bound(shares: dict[str, float]) -> bool:
    """Whether devices wait for the host longer than for anything else, and long."""
    lost = (shares[name] for name in (COMMUNICATION, WAIT, CALLBACK, HOST, GAP, LOOP))
    return shares[HOST] == max(lost) and shares[HOST] >= LEAST_HOST


def _shares(profile: Profile) -> str:
    """What takes the step; first the host if devices wait for it long."""
    shares = _category_shares(profile)
    parts = []
    if _is_host_bound(shares):
        parts.append(
            f"host-bound: devices wait {percent(shares[HOST])} of it for {_host_work(profile)}"
        )
    if shares[CALLBACK] >= LEAST_HOST:
        parts.append(f"devices wait {percent(shares[CALLBACK])} of it for callbacks on the host")
    largest = max((MATMUL, ATTENTION, ELEMENTWISE, COPY), key=lambda name: shares[name])
    shown = dict.fromkeys([largest, MATMUL] if shares[MATMUL] else [largest])
    parts += [f"{TITLES[name]} {percent(shares[name])}" for name in shown]
    if shares[COMMUNICATION] >= LEAST_SHARE:
        parts.append(f"exposed communication {percent(shares[COMMUNICATION])}")
    if shares[WAIT] >= LEAST_WAIT:
        parts.append(f"waiting for other devices {percent(shares[WAIT])}")
    if not _is_host_bound(shares):
        parts.append(f"idle {percent(profile.idle_s / profile.step_s)}")
    return ", ".join(parts)


def _host_work(profile: Profile) -> str:
    """What the host does most of the time in which devices wait between programs."""
    largest = _largest_wait(profile)
    if largest == COMPILATION:
        return f"compilation: {compiled_steps(profile.compiled_steps, profile.steps)}"
    return HOST_WORK.get(largest, "the host's own code")


def _largest_wait(profile: Profile) -> str:
    """The name of what devices wait for between programs most of that time."""
    waits = [part for part in profile.operations if part.category == HOST]
    return max(waits, key=lambda part: part.seconds).name


def _host_rows(profile: Profile) -> Iterator[str]:
    """The parts of the time between programs, the largest first."""
    names = {HOST: "other code of the host"}
    for part in profile.operations:
        if part.category == HOST and part.seconds:
            yield f"{names.get(part.name, part.name)} {units.show_seconds(part.seconds)}"


def _about(profile: Profile) -> Iterator[tuple[str, str]]:
    devices = counted(profile.devices, profile.kind)
    if profile.has_steps:
        program = f" of {profile.module}" if profile.module else ", as the trace marks them,"
        yield (
            "steps",
            f"mean of {counted(profile.steps, 'step')}{program} on {devices}, "
            f"the longest {units.show_seconds(profile.longest_step_s)}",
        )
        for slow in profile.slow_steps:
            cause = ": a program was compiled in it" if slow.compiled else ""
            yield "", f"without a step of {units.show_seconds(slow.seconds)}{cause}"
    else:
        yield "steps", f"none is marked or compiled as one: all of the trace, on {devices}"
    dtype = f", products in {profile.dtype}" if profile.dtype else ""
    yield "compute", f"{units.show_seconds(profile.compute_s)} a step{dtype}"
    if profile.communication_s:
        yield (
            "comms",
            f"{units.show_seconds(profile.communication_s)}: "
            f"{units.show_seconds(profile.hidden_s)} hidden by compute, "
            f"{units.show_seconds(profile.exposed_s)} exposed",
        )
    if between := list(_host_rows(profile)):
        yield "host", f"between programs: {', '.join(between)}"
    yield (
        "account",
        f"{percent(profile.operations_share)} of the step is in operations, "
        f"{percent(profile.named_share)} in those that the model names",
    )


def _category_rows(profile: Profile) -> Iterator[list[str]]:
    for part in profile.categories:
        if part.seconds:
            yield [
                f"  {TITLES[part.category]}",
                units.show_seconds(part.seconds),
                percent(part.share),
                bar(part.share, 1.0),
            ]
    yield ["  step", units.show_seconds(profile.step_s), percent(1.0), ""]


def _operation_table(parts: Sequence[OperationTime]) -> Block:
    """The operations, with the rate that they reach at the roof that binds, if it is known."""
    headers = ["operation", "pass", "category", ">times", ">a step", ">share"]
    has_work = any(part.hbm_bytes for part in parts)
    if has_work:
        headers[3] = ""
        headers.append(">rate")
    width = NAME_BESIDE_RATE if has_work else NAME_WIDTH
    if any(part.roof for part in parts):
        headers.append(">of roof")
        width = NAME_BESIDE_ROOF
    rows = []
    for part in parts:
        cells = [
            f"  {_shown_name(part, width)}",
            part.phase,
            _shown_category(part),
            units.significant(part.count),
            units.show_seconds(part.seconds),
            percent(part.share),
            _rate(part),
            percent(part.roof_s / part.seconds) if part.roof_s and part.seconds else "",
        ]
        rows.append([c for c, header in zip(cells, headers, strict=False) if header])
    return table([header for header in headers if header], rows)


def _shown_name(part: OperationTime, width: int) -> str:
    """The name of an operation; of those that the compiler has combined: `gradients: mlp, attn`."""
    name = part.name
    if "+" in name and part.category in (COMMUNICATION, WAIT):
        what = "gradients: " if part.phase == BACKWARD else ""
        name = what + name.replace("+", ", ")
    primitive, _, source = name.rpartition(" ")
    line = source.rpartition(":")[2]
    if primitive and line.isdecimal() and len(name) > width:  # `dot_general model…:190`
        return f"{name[: width - len(line) - 2]}…:{line}"
    if " " in name and len(name) > width:
        return f"{name[: width - 1]}…"
    return _shortened(name, width)


def _shown_category(part: OperationTime) -> str:
    """The category of an operation; of a collective its kind, if it is known."""
    if part.category == COMMUNICATION and part.collectives:
        return DISPLAY_NAMES[max(part.collectives, key=lambda kind: part.collectives[kind])]
    return part.category


def _shortened(name: str, width: int) -> str:
    """The end of a name that is longer than `width` characters."""
    return name if len(name) <= width else f"…{name[1 - width :]}"


def _rate(part: OperationTime) -> str:
    """FLOP/s, or bytes per second if these bind, or there are no FLOPs."""
    if not part.seconds or part.hbm_bytes is None:
        return ""
    if part.flops and part.roof != HBM:
        return units.show_rate(part.flops / part.seconds, "FLOP/s")
    return units.show_rate(part.hbm_bytes / part.seconds, "B/s") if part.hbm_bytes else ""


def _memory_rows(memory: MemoryPeak) -> Iterator[tuple[str, str]]:
    """The peak, when it is, and the largest arrays that are live then."""
    when = ""
    if memory.at_share is not None:
        when = f", at {percent(memory.at_share)} of the step"
    results = f"results {units.show_bytes(memory.results)}, " if memory.results else ""
    yield (
        "memory",
        f"{units.show_bytes(memory.bytes)} on a device: arguments "
        f"{units.show_bytes(memory.arguments)}, {results}temporary arrays "
        f"{units.show_bytes(memory.temporaries)}",
    )
    if not memory.arrays:
        return
    arrays = [
        f"{part.name}{f' {part.phase}' if part.phase else ''} {units.show_bytes(part.bytes)}"
        for part in memory.arrays[:N_ARRAYS]
    ]
    yield "peak", f"in {memory.operation}{when}; largest then: {', '.join(arrays)}"
