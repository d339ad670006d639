"""Plans against XLA's own compilers: many models, machines and strategies, a row each.

    python bench/check.py              # every row: an hour or two on two cores
    python bench/check.py 8b context   # rows whose names hold one of these words

Each row is planned and checked in a process of its own, one at a time; progress goes to stderr.
What it finds is kept in `bench/check.json`, row by row, and written as the table of
`docs/check_table.md`. A plan that the runtime refuses is a row too, with the reason. Programs that
were compiled before come from the cache of compiles. The last line is one JSON document.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from kept import Found, cells, refresh, verdict_of

import shardwise as sw
from shardwise import units
from shardwise.check.comparison import NEGLIGIBLE_SHARE

# The model that docs/check.md begins with: `check` has its program from the cache.
TINY = "llama3-8b,n_layers=2,d_model=512,d_ff=1024,n_heads=4,n_kv_heads=2,d_head=128,vocab=2048"
# Of a DeepSeek-V3 block: a dense layer and four of experts. Of LLaMA-3-8B on few chips: four.
BLOCK, SMALL = "deepseek-v3,n_layers=5", "llama3-8b,n_layers=4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan to check.

    Args:
        name: by which rows are chosen.
        work: arguments of `sw.Train`, or of `sw.Serve` where there is a context.
        fixed: what is given of the strategy.
    """

    name: str
    model: str
    hardware: str
    work: dict[str, Any]
    fixed: dict[str, Any]


def row(name: str, model: str, hardware: str, work: str, **fixed: Any) -> Row:
    """A row of training; `work` is SEQUENCESxLENGTH."""
    batch, seq = map(int, work.split("x"))
    given = {"batch": batch, "seq": seq}
    return Row(name=name, model=model, hardware=hardware, work=given, fixed=fixed)


def serving(name: str, hardware: str) -> Row:
    """A row of the book's decoding: LLaMA-3-70B in int8, 32 sequences of 8k tokens."""
    work = {"context": 8192, "batch": 32, "weights": "int8", "kv": "int8"}
    return Row(name=name, model="llama3-70b", hardware=hardware, work=work, fixed={})


ROWS = (
    row("tiny v5e", TINY, "v5e:2x2", "8x64", tensor=2, fsdp=2),
    row("tiny slices", "llama3-8b,n_layers=2,d_model=512,d_ff=1024,n_heads=4,n_kv_heads=2,"
        "vocab=4096", "v5e:2x2*2", "16x512", data=2, fsdp=4),
    row("small none", SMALL, "v5e:4x4", "16x4096", fsdp=16, remat="none"),
    row("small dots", SMALL, "v5e:4x4", "16x4096", fsdp=16, remat="dots"),
    row("small full", SMALL, "v5e:4x4", "16x4096", fsdp=16, remat="full"),
    row("small microbatches", SMALL, "v5e:4x4", "64x4096", fsdp=16, remat="dots", micro_batch=1),
    row("small zero 1", SMALL, "v5e:4x4", "32x4096", data=4, tensor=4, zero=1),
    row("small zero 2", SMALL, "v5e:4x4", "32x4096", data=4, tensor=4, zero=2),
    row("small zero 3", SMALL, "v5e:4x4", "32x4096", fsdp=4, tensor=4),
    row("small tensor 8", SMALL, "v5e:4x4", "16x4096", fsdp=2, tensor=8),
    row("small slices", SMALL, "v5e:4x4*2", "32x4096", data=2, fsdp=16),
    row("small 7x", SMALL, "7x:2x2x1", "16x4096", fsdp=4),
    row("8b v5e tensor", "llama3-8b", "v5e:16x16", "128x8192", tensor=4, fsdp=64),
    row("8b v5e fsdp", "llama3-8b", "v5e:16x16", "256x8192", fsdp=256, remat="full"),
    row("8b v5p tensor", "llama3-8b", "v5p:4x4x4", "32x8192", fsdp=16, tensor=4),
    row("8b v5p fsdp", "llama3-8b", "v5p:4x4x4", "64x8192", fsdp=64, remat="dots"),
    row("8b v5p tensor 8", "llama3-8b", "v5p:4x4x4", "64x8192", fsdp=8, tensor=8),
    row("8b v6e fsdp", "llama3-8b", "v6e:16x16", "512x8192", fsdp=256),
    row("8b v6e tensor", "llama3-8b", "v6e:16x16", "256x8192", fsdp=64, tensor=4),
    row("8b v4", "llama3-8b", "v4:4x4x4", "64x8192", fsdp=64),
    row("8b 7x", "llama3-8b", "7x:4x4x4", "256x8192", fsdp=64),
    row("70b v5p", "llama3-70b", "v5p:8x8x8", "512x8192", fsdp=128, tensor=4),
    row("405b v5p", "llama3.1-405b", "v5p:16x16x16", "512x8192", fsdp=512, tensor=8),
    row("mixtral v6e", "mixtral-8x7b", "v6e:16x16", "256x8192", expert=8, fsdp=32),
    row("deepseek 7x", BLOCK, "7x:4x4x4", "256x4096", expert=16, fsdp=4),
    row("context ring", "llama3-8b", "v5p:4x4x4", "16x32768", context=4, fsdp=16,
        context_kind="ring"),
    row("context ulysses", "llama3-8b", "v5p:4x4x4", "16x32768", context=4, fsdp=16,
        context_kind="ulysses"),
    row("pipeline", "llama3-8b", "v5p:4x4x4", "64x8192", pipe=4, fsdp=16),
    row("8b h100 tensor", "llama3-8b", "h100:8", "8x8192", tensor=8),
    row("8b h100 fsdp", "llama3-8b", "h100:64", "64x8192", fsdp=64),
    serving("decode v5e 8", "v5e:4x2"),
    serving("decode v5e 16", "v5e:4x4"),
)  # fmt: skip


def planned(one: Row) -> sw.Plan | sw.ServingPlan:
    """The plan of a row."""
    work = sw.Serve(**one.work) if "context" in one.work else sw.Train(**one.work)
    peak = isinstance(work, sw.Serve)  # the book's rows, without what engines keep free
    return sw.plan(sw.model(one.model), sw.hardware(one.hardware), work, one.fixed, peak=peak)


def checked(one: Row) -> Found:
    """A row in numbers, or why there are none."""
    found: Found = {"name": one.name, "model": one.model, "hardware": one.hardware}
    start = time.perf_counter()
    try:
        plan = planned(one)
        found["strategy"] = strategy(plan)
        found |= verdict_of(plan)
    except sw.ShardwiseError as error:
        return {**found, "verdict": "refused", "note": error.problems[0]}
    return {**found, "row_s": round(time.perf_counter() - start, 1)}


def strategy(plan: sw.Plan | sw.ServingPlan) -> str:
    """`fsdp 16, tensor 4; remat dots; zero 3; 2 microbatches`."""
    if not isinstance(plan, sw.Plan):
        return "decode"
    said = plan.strategy
    mesh = ", ".join(f"{role} {n}" for role, n in said.mesh.items() if n > 1)
    words = [mesh, f"remat {said.remat}", f"zero {said.zero}"]
    if said.n_microbatches > 1:
        words.append(f"{said.n_microbatches} microbatches")
    return "; ".join(words)


def table(rows: list[Found]) -> str:
    """Markdown: one line a row, then what has no numbers."""
    heads = ("model", "machine", "strategy", "peak, GiB", "FLOPs", "bytes by role", "step, s", "")
    lines = [cells(heads), "|---" * len(heads) + "|"]
    lines += [cells(line(r)) for r in rows if r.get("compiled")]
    without = [r for r in rows if not r.get("compiled")]
    lines += [""] * bool(without)
    for one in without:
        said = f"{one.get('model', one['name'])} on {one.get('hardware')}"
        note = one.get("note", "").partition("\n")[0]
        lines.append(f"- {one['verdict']}: {said}, {one.get('strategy', one['name'])}: {note}")
    return "\n".join(lines)


def line(one: Found) -> list[str]:
    """A row of the table: planned -> compiled."""
    plan, xla = one["planned"], one["compiled"]
    peak = f"{gib(plan['peak_bytes'])} -> {gib(xla['peak_bytes'])}"
    step, seconds = plan["step_s"], xla["step_s"] or {}
    times = f"{show(step['lower'])} to {show(step['upper'])} -> {show(seconds.get('roofline'))}"
    cycles = seconds.get("cycles")
    return [
        one["model"].replace(",", ", "),
        one["hardware"].replace("*", "\\*"),
        one["strategy"],
        f"{peak} ({ratio(xla['peak_bytes'], plan['peak_bytes'])})",
        ratio(xla["flops"], plan["flops"]),
        roles(one["collectives"]),
        times + (f", {show(cycles)}" if cycles else ""),
        one["verdict"],
    ]


def roles(found: list[Found]) -> str:
    """`tensor 10.4 GB +0.1%`: what a chip takes in as planned, and how far the program is off."""
    parts, least = [], NEGLIGIBLE_SHARE * sum(c["planned_bytes"] for c in found)
    for role in dict.fromkeys(c["role"] for c in found):
        mine = [c for c in found if c["role"] == role]
        plan, xla = (sum(c[key] for c in mine) for key in ("planned_bytes", "compiled_bytes"))
        if plan > least:
            parts.append(f"{role} {units.show_bytes(plan)} {ratio(xla, plan)}")
    return ", ".join(parts)


def gib(n_bytes: float | None) -> str:
    return "?" if n_bytes is None else f"{n_bytes / units.GiB:.2f}"


def ratio(compiled: float | None, plan: float) -> str:
    return "?" if compiled is None or not plan else f"{compiled / plan - 1:+.1%}"


def show(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.3g}"


def main(words: list[str]) -> int:
    if words[:1] == ["--row"]:
        print(json.dumps(checked(next(one for one in ROWS if one.name == words[1]))))
        return 0
    names = [one.name for one in ROWS]
    print(json.dumps(refresh(__file__, names, words, table, "bench/check.py")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
