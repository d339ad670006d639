"""The account of a measured step: where its time went."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.profile.categories import (
    ATTENTION,
    COMMUNICATION,
    COPY,
    ELEMENTWISE,
    GAP,
    HOST,
    LOOP,
    MATMUL,
)
from shardwise.profile.result import OperationTime, Profile
from shardwise.report.style import Block, bar, labelled, quiet, strong, table
from shardwise.report.words import counted, percent

N_OPERATIONS = 10  # largest, on the screen; --json has all
NAME_WIDTH = 34  # characters
TITLES = {
    MATMUL: "matmuls",
    ATTENTION: "attention",
    ELEMENTWISE: "elementwise, reductions",
    COPY: "copies, transposes",
    COMMUNICATION: "exposed communication",
    LOOP: "loops",
    GAP: "idle in the program",
    HOST: "idle between programs",
}
NOT_OPERATIONS = {LOOP, GAP, HOST}


def blocks(profile: Profile, written: str) -> Iterator[Block]:
    """The step in a line, its categories, its largest operations, and what is not known.

    Args:
        written: the file that was written for Perfetto; empty without one.
    """
    yield strong(_headline(profile))
    yield labelled(_about(profile))
    yield table(["category", ">a step", ">share", ""], _category_rows(profile))
    operations = [part for part in profile.operations if part.category not in NOT_OPERATIONS]
    headers = ["operation", "pass", "category", ">times", ">a step", ">share"]
    yield table(headers, [_operation_row(part) for part in operations[:N_OPERATIONS]])
    if not profile.has_programs:
        yield (
            "The trace does not hold the compiled program, or no library of protocol buffers is "
            "installed (pip install protobuf): operations have the names of the compiler, and "
            "their categories are guessed from these."
        )
    if written:
        yield quiet(f"wrote {written}: open it at ui.perfetto.dev")


def short(profile: Profile) -> Iterator[Block]:
    """The first line of an account, and the command for the rest."""
    yield labelled([("profile", _headline(profile))])
    yield quiet(f"type  shardwise profile {profile.trace}")


def _headline(profile: Profile) -> str:
    shares = {part.category: part.share for part in profile.categories}
    largest = max((MATMUL, ATTENTION, ELEMENTWISE, COPY), key=lambda name: shares[name])
    parts = [f"{TITLES[name]} {percent(shares[name])}" for name in dict.fromkeys([MATMUL, largest])]
    parts.append(f"exposed communication {percent(shares[COMMUNICATION])}")
    parts.append(f"idle {percent(profile.idle_s / profile.step_s)}")
    return f"step {units.show_seconds(profile.step_s)}: {', '.join(parts)}"


def _about(profile: Profile) -> Iterator[tuple[str, str]]:
    measured = counted(profile.steps, "step")
    yield (
        "steps",
        f"mean of {measured} of {profile.module} on {counted(profile.devices, profile.kind)}, "
        f"the longest {units.show_seconds(profile.longest_step_s)}",
    )
    yield "compute", f"{units.show_seconds(profile.compute_s)} a step"
    if profile.communication_s:
        yield (
            "comms",
            f"{units.show_seconds(profile.communication_s)}: "
            f"{units.show_seconds(profile.hidden_s)} hidden by compute, "
            f"{units.show_seconds(profile.exposed_s)} exposed",
        )
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


def _operation_row(part: OperationTime) -> list[str]:
    name = part.name
    if len(name) > NAME_WIDTH:
        name = f"…{name[1 - NAME_WIDTH :]}"
    return [
        f"  {name}",
        part.phase,
        part.category,
        units.significant(part.count),
        units.show_seconds(part.seconds),
        percent(part.share),
    ]
