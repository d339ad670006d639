"""CPU time of planning a deployment: DeepSeek-V3 on H200 and GB200 NVL72, one and two kinds of
engines, with a rate and bounds and without.

    python bench/plan_serve.py
"""

from __future__ import annotations

import json
import time

import shardwise as sw

WORK = sw.Serve(prompt=4096, output=1024, weights="fp8", kv="fp8", compute="fp8")
BOUNDED = sw.Serve(
    prompt=4096,
    output=1024,
    weights="fp8",
    kv="fp8",
    compute="fp8",
    rate=20.0,
    ttft_s=1.0,
    tpot_s=0.05,
)


def main() -> None:
    """Print a line for each plan, and all as JSON."""
    model = sw.model("deepseek-v3")
    rows = []
    for where in (sw.chip("h200"), sw.hardware("gb200:72")):
        for job in (WORK, BOUNDED):
            for kind in (True, False, None):
                start = time.process_time()
                plan = sw.plan(model, where, job, disaggregate=kind)
                took = time.process_time() - start
                print(f"{took:5.2f} s  {plan}")
                rows.append({"hardware": where.name, "disaggregate": kind, "cpu_s": took})
    print(json.dumps({"rows": rows, "most_s": max(r["cpu_s"] for r in rows)}))


if __name__ == "__main__":
    main()
