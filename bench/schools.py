"""Both schools of the same plans: collectives that a step writes down, and those that XLA's
partitioner chooses where it is told by sharding constraints how arrays lie.

    python bench/schools.py             # every row: ten minutes on two cores
    python bench/schools.py zero        # rows whose names hold one of these words

Each row is planned and compiled twice in a process of its own, one at a time. What it finds is kept
in `bench/schools.json`, row by row, and written as the table of `docs/check.md`. Programs that were
compiled before come from the cache of compiles. The last line is one JSON document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from check import SMALL, Row, planned, row
from kept import ROOT, Found, cells, refresh

import shardwise as sw
from shardwise import units
from shardwise.check.comparison import NEGLIGIBLE_SHARE
from shardwise.runtime.program import COLLECTIVES

PAGE = ROOT / "docs" / "check.md"
ROWS = (
    row("fsdp 16, full remat", SMALL, "v5e:4x4", "16x4096", fsdp=16, remat="full"),
    row("fsdp 16, 4 microbatches", SMALL, "v5e:4x4", "64x4096", fsdp=16, remat="full",
        micro_batch=1),
    row("fsdp 4, tensor 4", SMALL, "v5e:4x4", "32x4096", fsdp=4, tensor=4),
    row("data 4, tensor 4, zero 1", SMALL, "v5e:4x4", "32x4096", data=4, tensor=4, zero=1),
)  # fmt: skip


def measured(row: Row) -> Found:
    """A row in numbers: bytes by role and kind, planned and in either program."""
    plan = planned(row)
    found: Found = {"name": row.name, "on": row.hardware, "bytes": {}, "peak": [], "step_s": []}
    for i, who in enumerate(COLLECTIVES):
        verdict = sw.check(plan, collectives=who)
        for one in verdict.collectives:
            numbers = found["bytes"].setdefault(f"{one.role} {one.kind}", [0.0, 0.0, 0.0])
            numbers[0], numbers[1 + i] = one.planned_bytes, one.compiled_bytes
        compiled, found["verdict"] = verdict.compiled, verdict.verdict
        found["peak"].append(compiled and compiled.peak_bytes)
        found["step_s"].append(compiled and compiled.step_s and compiled.step_s.roofline)
    found["peak"].insert(0, plan.memory.total)
    found["step_s"].insert(0, plan.step.lower)
    return found


def table(found: list[Found]) -> str:
    """A block of lines a row: bytes, memory, seconds."""
    lines = [
        cells(("of a chip in a step", "plan", "written down", "partitioned")),
        "|---|--:|--:|--:|",
    ]
    for one in found:
        lines.append(cells((f"**{one['name']}** on {one['on']}", "", "", "")))
        lines += _bytes(one)
        lines.append(cells(("memory at peak", *map(units.show_gib, one["peak"]))))
        lines.append(cells(("step, rooflines", *map(units.show_seconds, one["step_s"]))))
    return "\n".join(lines)


def _bytes(one: Found) -> Iterator[str]:
    """Collectives, but those of a thousandth of all bytes."""
    least = NEGLIGIBLE_SHARE * sum(max(numbers) for numbers in one["bytes"].values())
    for name, numbers in one["bytes"].items():
        if max(numbers) > least:
            kind = name.replace("_", "-")
            yield cells((kind, *(units.show_bytes(n) if n else "" for n in numbers)))


def main(given: Sequence[str]) -> int:
    every = {row.name: row for row in ROWS}
    if given[:1] == ["--row"]:
        print(json.dumps(measured(every[given[1]])))
        return 0
    found = refresh(__file__, every, list(given), table, "bench/schools.py", page=PAGE)
    print(json.dumps({"rows": len(found)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
