"""What scripts of many slow rows share: rows in processes of their own, kept as JSON and tables."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

import shardwise as sw
from shardwise.check.compiling.process import Limits

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "check_table.md"
LIMIT_S = 1800.0  # of one compile; a row may take twice as long
TOLD = (
    *("verdict", "note", "compiler", "fits", "planned", "compiled"),
    *("deviations", "causes", "collectives"),
)

Found = dict[str, Any]


def verdict_of(plan: sw.Plan | sw.ServingPlan) -> Found:
    """The numbers of a check; of serving those of the decode step."""
    limits = Limits(wall_s=LIMIT_S)
    if isinstance(plan, sw.Plan):
        document = json.loads(msgspec.json.encode(sw.check(plan, limits=limits)))
    else:
        document = json.loads(msgspec.json.encode(sw.check(plan, limits=limits).decode))
    return {name: document[name] for name in (*TOLD, "differences", "versions", "compile_s")}


def run(script: str, name: str) -> Found:
    """A row in a process of its own: `python SCRIPT --row NAME`, whose last line is JSON."""
    command, limit_s = [sys.executable, script, "--row", name], 2 * LIMIT_S
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"name": name, "verdict": "failed", "note": f"took more than {limit_s:.0f} s"}
    if done.returncode:
        return {"name": name, "verdict": "failed", "note": done.stderr.strip()[-300:]}
    answer: Found = json.loads(done.stdout.splitlines()[-1])
    return answer


def refresh(
    script: str,
    names: Iterable[str],
    words: list[str],
    table: Callable[[list[Found]], str],
    marker: str,
    page: Path | None = None,
    at_once: int = 1,
    source: str = "",
) -> list[Found]:
    """Run the rows whose names hold one of `words` (all without), some of them at once, keep each
    as soon as it is there, and write the table of all that are kept into a page. With `source`, a
    row that was kept with the same `source` is not run again."""
    path, names = Path(script).with_suffix(".json"), list(names)
    found: Mapping[str, Found] = json.loads(path.read_text()) if path.exists() else {}
    chosen = [n for n in names if not words or any(re.search(rf"\b{w}\b", n) for w in words)]
    if source:
        chosen = [n for n in chosen if found.get(n, {}).get("source") != source]
    with ThreadPoolExecutor(at_once) as pool:
        for one in pool.map(lambda name: run(script, name), chosen):
            said = f"{one['name']}: {one['verdict']} {one.get('row_s', '')} s"
            print(said, file=sys.stderr, flush=True)
            found = {n: {**found, one["name"]: one}[n] for n in names if n in {*found, one["name"]}}
            path.write_text(json.dumps(found, indent=1) + "\n")
            write_between(marker, table(list(found.values())), page or PAGE)
    return list(found.values())


def write_between(marker: str, text: str, path: Path) -> None:
    """Put text between the marks of a script in a page."""
    begin, end = f"<!-- rows of {marker} -->", f"<!-- end of {marker} -->"
    page = path.read_text()
    before, rest = page.split(begin)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}")


def cells(values: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(values)} |"
