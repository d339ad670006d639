"""How fast the search is: full searches of four machines, on arrays and one by one.

    python bench/search.py

For each case: legal strategies evaluated (every mesh, placement, microbatch, schedule, chunks,
remat, ZeRO stage, way of the context), CPU seconds of evaluating all of them, strategies per CPU
second; the same for a plan, where a bound leaves most of them out; how many strategies per CPU
second the same formulas evaluate when each is taken by itself, as planners without arrays do; and
CPU seconds of the process of `shardwise explain`. The last line is one JSON document.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from startup import SHARDWISE, cpu_seconds

import shardwise as sw
from shardwise.estimate.calibration import calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.search.training import rank

CASES = [
    ("llama3-8b", "h100:8", sw.Train(batch=64, seq=8192)),
    ("gpt3-175b", "a100:1024", sw.Train(batch=1536, seq=2048)),
    ("llama3.1-405b", "h100:16384", sw.Train(batch=2048, seq=8192)),
    ("llama3-70b", "v5p:16x20x28", sw.Train(batch=1120, seq=4096)),
]
ALONE_S = 2.0  # seconds spent on strategies one by one


def cpu_s(run: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and what it gives."""
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


def one_by_one(model: sw.ModelConfig, system: sw.System, job: sw.Train, ranking: Any) -> float:
    """Strategies per CPU second where each is derived and evaluated alone."""
    cal, layouts = calibration(system.chip), [c.layout for c in ranking.candidates]
    capacity, done, start = system.chip.need("hbm_bytes"), 0, time.process_time()
    while time.process_time() - start < ALONE_S:
        layout = layouts[done % len(layouts)]
        one = LayoutStep(model, system, job, layout)
        one.time(cal, FusionProfile())
        step_memory(model, job, one.program, layout, capacity)
        done += 1
    return done / (time.process_time() - start)


def measure(name: str, machine: str, job: sw.Train) -> dict[str, Any]:
    """One case."""
    model, system = sw.model(name), sw.hardware(machine)
    cal = calibration(system.chip)
    all_s, every = cpu_s(lambda: rank.rank(model, system, job, cal, exhaustive=True))
    plan_s, best = cpu_s(lambda: rank.rank(model, system, job, cal))
    if best.candidates[0].rank != every.candidates[0].rank:
        raise SystemExit(f"{name}: the bound left the best strategy out")
    alone = one_by_one(model, system, job, best)
    explain = (SHARDWISE, "explain", name, machine, "--batch", f"{job.batch}x{job.seq}")
    return {
        "model": name,
        "hardware": machine,
        "strategies": every.n_strategies,
        "fitting": every.n_fitting,
        "all_s": all_s,
        "per_cpu_s": every.n_strategies / all_s,
        "plan_s": plan_s,
        "plan_strategies": best.n_strategies,
        "one_by_one_per_cpu_s": alone,
        "ratio": every.n_strategies / all_s / alone,
        "explain_s": cpu_seconds(explain),
    }


def main() -> int:
    found = []
    for case in CASES:
        row = measure(*case)
        found.append(row)
        print(
            f"{row['model']} on {row['hardware']}: {row['strategies']:,} legal strategies, "
            f"{row['fitting']:,} fit\n"
            f"  all of them  {row['all_s']:.2f} s CPU  {row['per_cpu_s']:,.0f} a second\n"
            f"  a plan       {row['plan_s']:.2f} s CPU  ({row['plan_strategies']:,} evaluated)\n"
            f"  one by one   {row['one_by_one_per_cpu_s']:,.0f} a second: "
            f"the arrays are x{row['ratio']:,.0f}\n"
            f"  explain      {row['explain_s']:.2f} s CPU, the whole command"
        )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
