"""One collective: its time, the levels of its links, and the size below which latency binds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise import units
from shardwise.formulas.collective_time import CollectiveTime
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.report.style import Block, labelled, quiet, strong, table


def document(result: CollectiveTime) -> dict[str, Any]:
    """The result as a JSON document, with its time."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(result)
    return fields | {"time_s": result.time_s}


def blocks(result: CollectiveTime) -> Iterator[Block]:
    """The time and what bounds it, the links, and each level."""
    name = DISPLAY_NAMES[result.kind]
    bound = "Latency" if result.latency_s > result.transfer_s else "Bandwidth"
    over = " and ".join(result.axes) or "no axis"
    yield strong(
        f"{bound}-bound: {name} of {units.show_bytes(result.joined_bytes)} over {over} "
        f"({result.n_chips:,} chips) takes {units.show_seconds(result.time_s)}."
    )
    facts = [(f"axis {axis} = {result.mesh[axis]}", links) for axis, links in result.links.items()]
    if result.latency_s:
        below = units.show_bytes(result.latency_bound_bytes)
        text = f"{units.show_seconds(result.latency_s)} whatever the size; binds below {below}"
        facts.append(("latency", text))
    else:
        facts.append(("latency", "no public figure for these links"))
    facts.append(("received", f"{units.show_bytes(result.received_bytes)} by each chip"))
    yield labelled(facts)
    rows = [
        [
            level.name,
            f"{level.members:,}",
            units.show_seconds(level.transfer_s),
            "the switch adds" if level.reduces else "",
        ]
        for level in result.levels
    ]
    yield table(["level", ">members", ">bytes take", "!"], rows)
    size = "what each chip sends" if result.kind == "permute" else "the whole array (the book's V)"
    yield quiet(f"the size is {size}; levels work at the same time; peak rates of the links")
