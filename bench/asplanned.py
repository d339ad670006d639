"""Compiled programs over their plans: layouts of every family, parallelism and chip, a row each.

    python bench/asplanned.py               # the rows that are not there yet: an hour on two cores
    python bench/asplanned.py pipeline h100 # of these, rows whose names hold one of these words

Each row is planned and compiled in a process of its own. Models have few layers, a vocabulary of
16k, and at most the width of a 2B model, so that a row compiles in a minute: a scan over layers
computes and sends the same for each. What is found is kept in `bench/asplanned.json`, row by row,
with a hash of the source that it comes from: a row of the present source is not run again. The rows
become the table of `docs/as_planned.md`. The last line is one JSON document.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from check import gib, ratio, roles, strategy
from kept import LIMIT_S, ROOT, Found, cells, refresh

import shardwise as sw
from shardwise.check.compiling.cache import source_digest
from shardwise.check.compiling.process import Limits
from shardwise.check.verdict import Verdict

PAGE = ROOT / "docs" / "as_planned.md"
SMALL = ",vocab=16384"
WIDTH = ",d_model=2048,d_ff=7168,n_heads=16,n_kv_heads=8"  # half of LLaMA-3-8B's
DENSE = f"llama3-8b,n_layers=4{WIDTH}{SMALL}"
DEEP = f"llama3-8b,n_layers=16{WIDTH}{SMALL}"  # stages with several layers
COARSE = f"mixtral-8x7b,n_layers=2{WIDTH}{SMALL}"
FINE = f"qwen3-30b-a3b,n_layers=2{SMALL}"
LATENT = f"deepseek-v2-lite,n_layers=3{SMALL}"  # a dense layer, and two of fine experts
WINDOWS = f"gemma3-4b,n_layers=6{SMALL}"  # five layers with a window, and one without
SINKS = f"gpt-oss-20b,n_layers=2{SMALL}"  # a window and none, experts, sinks


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A layout whose program is compiled.

    Args:
        name: by which rows are chosen; its first word is the group.
        work: `SEQUENCESxLENGTH` of a training step or of the decoding sequences of an engine.
        fixed: what is given of the strategy, or of `sw.Serve`.
        step: `train`, `decode` or `prefill`.
    """

    name: str
    model: str
    hardware: str
    work: str
    fixed: dict[str, Any]
    step: str = "train"

    @property
    def group(self) -> str:
        """The first word of the name."""
        return self.name.split()[0]


def row(name: str, model: str, hardware: str, work: str, **fixed: Any) -> Row:
    """A row of training."""
    return Row(name=name, model=model, hardware=hardware, work=work, fixed=fixed)


def engine(name: str, model: str, hardware: str, work: str, **fixed: Any) -> tuple[Row, Row]:
    """The rows of an engine's two programs."""
    given: dict[str, Any] = {"model": model, "hardware": hardware, "work": work, "fixed": fixed}
    return (
        Row(name=f"decode {name}", step="decode", **given),
        Row(name=f"prefill {name}", step="prefill", **given),
    )


ROWS = (
    row("dense fsdp v5e", DENSE, "v5e:4x4", "16x4096", fsdp=16),
    row("dense fsdp v5p", DENSE, "v5p:2x2x4", "32x4096", fsdp=16),
    row("dense fsdp v6e", DENSE, "v6e:4x4", "32x4096", fsdp=16),
    row("dense fsdp 7x", DENSE, "7x:2x2x1", "16x4096", fsdp=4),
    row("dense fsdp h100", DENSE, "h100:8", "16x4096", fsdp=8),
    row("dense fsdp b200", DENSE, "b200:8", "16x4096", fsdp=8),
    row("dense tensor v5e", DENSE, "v5e:4x4", "16x4096", fsdp=4, tensor=4),
    row("dense tensor v5p", DENSE, "v5p:2x2x4", "32x4096", fsdp=4, tensor=4),
    row("dense tensor h100", DENSE, "h100:8", "16x4096", fsdp=2, tensor=4),
    row("dense tensor b200", DENSE, "b200:8", "8x4096", tensor=8),
    row("dense zero-1 v5p", DENSE, "v5p:2x2x4", "32x4096", data=4, tensor=4, zero=1),
    row("dense zero-2 v6e", DENSE, "v6e:4x4", "32x4096", data=16, zero=2),
    row("dense full v5e", DENSE, "v5e:4x4", "16x4096", fsdp=16, remat="full"),
    row("dense microbatches v5e", DENSE, "v5e:4x4", "64x4096", fsdp=16, n_microbatches=4),
    row("dense slices v5e", DENSE, "v5e:4x4*2", "32x4096", data=2, fsdp=16),
    row("chosen dense v6e", DENSE, "v6e:4x4", "32x4096"),
    row("chosen dense h100", DENSE, "h100:16", "32x8192"),
    row("chosen fine v6e", FINE, "v6e:8x8", "64x4096"),
    row("chosen long h100", DENSE, "h100:8", "1x131072"),
    row("context gather v5p", DENSE, "v5p:2x2x4", "4x32768", context=4, fsdp=4,
        context_kind="gather"),
    row("context ring v5p", DENSE, "v5p:2x2x4", "4x32768", context=4, fsdp=4, context_kind="ring"),
    row("context ulysses v5p", DENSE, "v5p:2x2x4", "4x32768", context=4, fsdp=4,
        context_kind="ulysses"),
    row("context gather h100", DENSE, "h100:8", "2x32768", context=4, fsdp=2,
        context_kind="gather"),
    row("context ring h100", DENSE, "h100:8", "2x32768", context=4, fsdp=2, context_kind="ring"),
    row("context ulysses h100", DENSE, "h100:8", "2x32768", context=4, fsdp=2,
        context_kind="ulysses"),
    row("pipeline gpipe v5p", DEEP, "v5p:2x2x1", "16x4096", pipe=4, schedule="gpipe"),
    row("pipeline 1f1b v5p", DEEP, "v5p:2x2x1", "16x4096", pipe=4, schedule="1f1b"),
    row("pipeline interleaved v5p", DEEP, "v5p:2x2x1", "16x4096", pipe=4,
        schedule="interleaved", virtual=2),
    row("pipeline zb-h1 v5p", DEEP, "v5p:2x2x1", "16x4096", pipe=4, schedule="zb-h1"),
    row("pipeline zb-v v5p", DEEP, "v5p:2x2x1", "16x4096", pipe=4,
        schedule="zb-v"),
    row("pipeline tensor v5e", DEEP, "v5e:4x4", "32x4096", pipe=2, tensor=4, data=2,
        schedule="1f1b"),
    row("pipeline 1f1b h100", DEEP, "h100:8", "32x4096", pipe=2, fsdp=4, schedule="1f1b"),
    row("experts coarse v6e", COARSE, "v6e:4x4", "32x4096", expert=8, fsdp=2),
    row("experts coarse v5p", COARSE, "v5p:2x2x4", "32x4096", expert=4, fsdp=4),
    row("experts coarse h100", COARSE, "h100:8", "16x4096", expert=8),
    row("experts fine v5e", FINE, "v5e:4x4", "16x4096", expert=16),
    row("experts fine v6e", FINE, "v6e:4x4", "32x4096", expert=16),
    row("experts fine b200", FINE, "b200:8", "16x4096", expert=8),
    row("experts latent v5p", LATENT, "v5p:2x2x4", "32x4096", expert=4, fsdp=4),
    row("experts latent h100", LATENT, "h100:8", "16x4096", expert=8),
    row("experts latent 7x", LATENT, "7x:2x2x1", "16x4096", expert=4),
    row("windows dense v5p", WINDOWS, "v5p:2x2x1", "16x8192", fsdp=4),
    row("windows dense h100", WINDOWS, "h100:8", "16x8192", fsdp=8),
    row("windows sinks h100", SINKS, "h100:8", "16x4096", expert=8),
    row("windows sinks v5e", SINKS, "v5e:4x4", "16x4096", expert=4, fsdp=4),
    *engine("dense v5e", DENSE, "v5e:2x2", "16x8192"),
    *engine("int8 v5e", f"llama3-70b,n_layers=4{SMALL}", "v5e:4x2", "32x8192", weights="int8",
            kv="int8"),
    *engine("dense h100", f"llama3-70b,n_layers=4{SMALL}", "h100:8", "256x8192"),
    *engine("fp8 h100", f"llama3-70b,n_layers=4{SMALL}", "h100:8", "512x8192", weights="fp8",
            kv="fp8"),
    *engine("sinks h100", f"gpt-oss-20b,n_layers=4{SMALL}", "h100:2", "128x8192"),
    *engine("latent h100", LATENT, "h100:2", "128x4096"),
    *engine("fine b200", FINE, "b200:2", "128x4096"),
    *engine("fine v6e", FINE, "v6e:2x2", "32x4096"),
    *engine("latent v5p", LATENT, "v5p:2x2x1", "32x4096"),
    *engine("windows v5p", WINDOWS, "v5p:2x2x1", "16x8192"),
)  # fmt: skip


def planned(one: Row) -> sw.Plan | sw.ServingPlan:
    """The plan of a row."""
    batch, length = map(int, one.work.split("x"))
    model, system = sw.model(one.model), sw.hardware(one.hardware)
    if one.step == "train":
        return sw.plan(model, system, sw.Train(batch=batch, seq=length), one.fixed)
    job = sw.Serve(context=length, batch=batch, **one.fixed)
    return sw.plan(model, system, job, peak=True)


def verdict(one: Row, plan: sw.Plan | sw.ServingPlan) -> Verdict:
    """The verdict on the program of a row."""
    limits = Limits(wall_s=LIMIT_S)
    if isinstance(plan, sw.Plan):
        return sw.check(plan, limits=limits)
    both = sw.check(plan, limits=limits)
    return both.decode if one.step == "decode" else both.prefill


def measured(one: Row) -> Found:
    """A row in numbers, or why there are none."""
    row_fields = {"name": one.name, "model": one.model, "hardware": one.hardware}
    result: Found = {**row_fields, "source": source_digest(), "step": one.step}
    start = time.perf_counter()
    try:
        plan = planned(one)
        result["strategy"] = strategy_words(plan)
        document = json.loads(msgspec.json.encode(verdict(one, plan)))
    except sw.ShardwiseError as error:
        return {**result, "verdict": "refused", "note": error.problems[0]}
    for name in ("verdict", "planned", "compiled", "causes", "collectives", "compile_s"):
        result[name] = document[name]
    return {**result, "row_s": round(time.perf_counter() - start, 1)}


def strategy_words(plan: sw.Plan | sw.ServingPlan) -> str:
    """The strategy in words; of training with schedule and kind of context."""
    if not isinstance(plan, sw.Plan):
        return ", ".join(f"{role} {n}" for role, n in plan.strategy.mesh.items() if n > 1)
    said = plan.strategy
    words = [strategy(plan)]
    if said.mesh["pipe"] > 1:
        words.append(said.schedule)
    if said.mesh["context"] > 1:
        words.append(f"{said.context_kind} context")
    return "; ".join(words)


def over_plan(one: Found, mode: str, planned: str = "lower") -> float | None:
    """Seconds of the compiled program over those of the plan.

    Args:
        mode: how the program is timed: `roofline` or `cycles`.
        planned: the plan's `lower` bound or its `expected` time.
    """
    seconds = (one.get("compiled") or {}).get("step_s")
    if not seconds or seconds[mode] is None:
        return None
    return float(seconds[mode] / one["planned"]["step_s"][planned])


def asynchronous(one: Found) -> float | None:
    """Share of the bytes of collectives that asynchronous ones move; None without collectives."""
    n_bytes = sum(c["compiled_bytes"] for c in one["collectives"])
    if not n_bytes:
        return None
    return float(sum(c["compiled_bytes"] * c["asynchronous"] for c in one["collectives"]) / n_bytes)


def unplanned(one: Found) -> float:
    """Bytes of collectives beyond the plan's, by role, over all planned bytes."""
    by_role: dict[str, list[float]] = {}
    for c in one["collectives"]:
        sums = by_role.setdefault(c["role"], [0.0, 0.0])
        sums[0] += c["planned_bytes"]
        sums[1] += c["compiled_bytes"]
    planned_bytes = sum(plan for plan, _ in by_role.values())
    extra = sum(max(0.0, xla - plan) for plan, xla in by_role.values())
    return extra / planned_bytes if planned_bytes else 0.0


def table(rows: list[Found]) -> str:
    """Markdown: a line a row, then medians and the worst, then what has no numbers."""
    heads = ("row", "model", "machine", "strategy", "rooflines", "cycles", "of expected",
             "peak, GiB", "FLOPs", "HBM bytes", "bytes by role", "unplanned", "async")  # fmt: skip
    compiled = [one for one in rows if over_plan(one, "roofline") is not None]
    lines = [summary(compiled), "", cells(heads), "|---" * len(heads) + "|"]
    lines += [cells(line(one)) for one in compiled]
    without = [one for one in rows if over_plan(one, "roofline") is None]
    lines += [""] * bool(without)
    for one in without:
        note = one.get("note", "").partition("\n")[0]
        lines.append(f"- {one['name']}: {one['verdict']}: {note}".rstrip(": "))
    return "\n".join(lines)


def line(one: Found) -> list[str]:
    """A row of the table."""
    plan, xla = one["planned"], one["compiled"]
    share = asynchronous(one)
    return [
        one["name"],
        short(one["model"]),
        one["hardware"].replace("*", "\\*"),
        one["strategy"],
        times(over_plan(one, "roofline")),
        times(over_plan(one, "cycles")),
        times(over_plan(one, "cycles", "expected")),
        f"{gib(plan['peak_bytes'])} -> {gib(xla['peak_bytes'])}",
        ratio(xla["flops"], plan["flops"]),
        times((xla["hbm_bytes"] or 0.0) / plan["hbm_bytes"]),
        roles(one["collectives"]),
        f"{unplanned(one):.0%}",
        "" if share is None else f"{share:.0%}",
    ]


def short(model: str) -> str:
    """`llama3-8b, 4 layers`; the whole name is in the JSON file."""
    name, _, changes = model.partition(",")
    layers = dict(change.split("=") for change in changes.split(","))["n_layers"]
    return f"{name}, {layers} layers"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def summary(rows: Sequence[Found]) -> str:
    """Markdown: medians and the worst, of all rows and of each group."""
    groups: dict[str, list[Found]] = {"all": list(rows)}
    for one in rows:
        groups.setdefault(one["name"].split()[0], []).append(one)
    heads = ("rows", "n", "rooflines: median", "worst", "cycles: median", "worst",
             "of expected: median", "worst", "peak off: median", "worst", "HBM: median",
             "worst")  # fmt: skip
    lines = [cells(heads), "|---|" + "--:|" * (len(heads) - 1)]
    for name, members in groups.items():
        figures = figures_of(members)
        if figures:
            lines.append(cells([name, str(len(members)), *spread_words(figures)]))
    return "\n".join(lines)


def figures_of(rows: Iterable[Found]) -> dict[str, tuple[float, float]]:
    """Figure -> (median, worst) over rows with numbers."""
    rows = list(rows)
    columns = {
        "roofline": [over_plan(one, "roofline") for one in rows],
        "cycles": [over_plan(one, "cycles") for one in rows],
        "expected": [over_plan(one, "cycles", "expected") for one in rows],
        "peak": [peak_off(one) for one in rows],
        "hbm": [hbm_over(one) for one in rows],
    }
    spreads = {}
    for name, column in columns.items():
        values = [value for value in column if value is not None]
        if values:
            spreads[name] = (statistics.median(values), max(values))
    return spreads


def peak_off(one: Found) -> float | None:
    """Distance of the compiled peak from the planned one, over the planned one."""
    peak = (one.get("compiled") or {}).get("peak_bytes")
    return abs(peak / one["planned"]["peak_bytes"] - 1) if peak else None


def hbm_over(one: Found) -> float | None:
    """Compiled HBM bytes over planned ones."""
    n_bytes = (one.get("compiled") or {}).get("hbm_bytes")
    return n_bytes / one["planned"]["hbm_bytes"] if n_bytes else None


def spread_words(figures: dict[str, tuple[float, float]]) -> list[str]:
    """Medians and worst of each figure, in the order of the table."""
    words = []
    for name in ("roofline", "cycles", "expected", "peak", "hbm"):
        spread = figures.get(name)
        show = "{:.1%}" if name == "peak" else "{:.2f}"
        words += [show.format(value) for value in spread] if spread else ["", ""]
    return words


def main(words: list[str]) -> int:
    if words[:1] == ["--row"]:
        print(json.dumps(measured(next(one for one in ROWS if one.name == words[1]))))
        return 0
    names = [one.name for one in ROWS]
    rows = refresh(
        __file__, names, words, table, "bench/asplanned.py", PAGE, source=source_digest()
    )
    print(json.dumps({"rows": rows, "all": figures_of(rows)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
