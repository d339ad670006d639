"""The timeline of compiled programs against published runs of MaxText on TPUs.

    python bench/timeline.py           # every run: an hour on two cores
    python bench/timeline.py v5p 16b   # runs whose names hold one of these words

Each run becomes our own program of the same model, batch, mesh and remat, compiled for its slice;
its step by the compiler's cycles and by rooflines stands beside the published one. Nothing is
fitted. The programs are equivalents, not MaxText itself: collectives are written out where MaxText
leaves them to the partitioner, and options of the compiler are its defaults. What is kept, and
where, is as with `bench/check.py`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from kept import Found, cells, refresh, verdict_of

import shardwise as sw
from shardwise.models import ModelConfig
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.validate import Run, load
from shardwise.vocabulary import LAYER

# Of `validate`: MaxText's README (v5p, v5e; 2024-04).
KEPT = (
    "maxtext-v5e-16b-1x256",
    "maxtext-v5e-64b-1x256",
    "maxtext-v5e-128b-1x256",
    "maxtext-v5e-16b-2x256",
    "maxtext-v5p-32b-64",
    "maxtext-v5p-64b-64",
    "maxtext-v5p-128b-128",
    "maxtext-v5p-256b-512",
)
DIMS_32B = "maxtext-v5p-32b-64"  # the run whose model is MaxText's "32B"
SHARDED = {"zero": 3}
# MaxText's save_dot_except_mlpwi: attention and the wide products of the MLP run again.
EXCEPT_WIDE = ("norms", "attention", "gate", "up", "activation")
OFFLOADED = ("q", "k", "v", "layer_input")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A published run: what of it a program needs, and its seconds of a step."""

    name: str
    model: ModelConfig
    system: sw.System
    job: sw.Train
    layout: Layout
    measured_s: float


def of_validate() -> dict[str, Run]:
    """Published runs by name."""
    return {run.id: run for run in load() if isinstance(run, Run)}


def stated() -> list[Stated]:
    """All runs that are compared."""
    runs = of_validate()
    found = [
        Stated(
            name=name,
            model=runs[name].config,
            system=runs[name].system,
            job=runs[name].job,
            layout=runs[name].layout,
            measured_s=runs[name].measured_step_s,
        )
        for name in KEPT
    ]
    return found + documented(runs[DIMS_32B])


def documented(of_32b: Run) -> list[Stated]:
    """Runs of MaxText's documents that `validate` does not hold; tokens a second of a chip.

    README, v5e: 32B, per-device batch 4 x 2,048, 132 TFLOP/s a chip (66.86 %), which is 677 tokens.
    Performance pages: LLaMA-2-70B on v5p 65.4 %, LLaMA-3.1-8B and 70B on v6e 45.46 and 50.33 %.
    """

    def run(
        name: str, model: ModelConfig, slice: str, batch: int, seq: int, rate: float, **form: Any
    ) -> Stated:
        system = sw.hardware(slice)
        n = system.n_chips
        layout = Layout(mesh=Mesh(fsdp=n), micro_batch=batch, **{**SHARDED, **form})
        job = replace(of_32b.job, batch=batch * n, seq=seq)
        return Stated(
            name=name,
            model=model,
            system=system,
            job=job,
            layout=layout,
            measured_s=batch * seq / rate,
        )

    wide: dict[str, Any] = {"recomputed": EXCEPT_WIDE}
    host: dict[str, Any] = {**wide, "offload": OFFLOADED}
    return [
        run("maxtext-v5e-32b-256", of_32b.config, "v5e:16x16", 4, 2048, 677, recomputed=(LAYER,)),
        run(
            "maxtext-v5p-llama2-70b-512", sw.model("llama2-70b"), "v5p:8x8x8", 4, 4096, 692, **wide
        ),
        run("maxtext-v6e-8b-256", sw.model("llama3.1-8b"), "v6e:16x16", 3, 8192, 7207, **host),
        run("maxtext-v6e-70b-256", sw.model("llama3.1-70b"), "v6e:16x16", 5, 8192, 960, **host),
    ]


def checked(one: Stated) -> Found:
    """A run in numbers, or why there are none."""
    found: Found = {
        "name": one.name,
        "hardware": one.system.name,
        "mesh": str(one.layout.mesh),
        "remat": one.layout.policy,
        "measured_s": one.measured_s,
    }
    if one.layout.offload:
        note = (
            "activations wait in host memory there; its program has not been compiled: with "
            "MaxText's flags such ones took 18 minutes."
        )
        return {**found, "verdict": "not comparable", "note": note}
    start = time.perf_counter()
    try:
        found |= verdict_of(sw.evaluate(one.model, one.system, one.job, one.layout))
    except sw.ShardwiseError as error:
        return {**found, "verdict": "refused", "note": error.problems[0]}
    return {**found, "row_s": round(time.perf_counter() - start, 1)}


def table(rows: list[Found]) -> str:
    """Markdown: published and predicted seconds, then the spread, then what has none."""
    heads = ("run", "machine", "mesh", "remat", ">step, s", ">cycles", ">rooflines", "program")
    timed = [r for r in rows if (r.get("compiled") or {}).get("step_s")]
    lines = []
    if timed:
        lines += [cells(h.lstrip(">") for h in heads)]
        lines += ["".join("|---:" if h[0] == ">" else "|---" for h in heads) + "|"]
        lines += [*map(cells, map(line, timed)), ""]
        lines += [spread(timed, mode) for mode in ("cycles", "roofline")]
    lines += [f"- {r['verdict']}: {r['name']}: {note(r)}" for r in rows if r not in timed]
    return "\n".join(lines).rstrip()


def note(one: Found) -> str:
    return str(one.get("note", "")).partition("\n")[0]


def line(one: Found) -> list[str]:
    return [
        one["name"].removeprefix("maxtext-"),
        one["hardware"].replace("*", "\\*"),
        one["mesh"],
        one["remat"],
        f"{one['measured_s']:.2f}",
        *(f"{seconds(one, m):.2f} ({error(one, m):+.0%})" for m in ("cycles", "roofline")),
        one["verdict"],
    ]


def seconds(one: Found, mode: str) -> float:
    return float(one["compiled"]["step_s"][mode])


def error(one: Found, mode: str) -> float:
    """Of the predicted step against the published one."""
    return seconds(one, mode) / float(one["measured_s"]) - 1


def spread(rows: list[Found], mode: str) -> str:
    """One sentence."""
    found = sorted(error(r, mode) for r in rows)
    middle = statistics.median(abs(e) for e in found)
    return (
        f"By {mode}: {found[0]:+.0%} to {found[-1]:+.0%} of the published step over {len(found)} "
        f"runs, half of them within {middle:.0%}.\n"
    )


def main(words: list[str]) -> int:
    runs = {one.name: one for one in stated()}
    if words[:1] == ["--row"]:
        print(json.dumps(checked(runs[words[1]])))
        return 0
    print(json.dumps(refresh(__file__, runs, words, table, "bench/timeline.py")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
