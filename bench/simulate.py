"""How fast the simulation of serving is, on one core.

    python bench/simulate.py [REQUESTS]

A million requests by default: Poisson arrivals, prompts of 1,024 tokens, outputs of 256, up to 256
sequences at once; a tenth of them for the other cases. For each: CPU seconds, requests and events a
CPU second (an event is a pass, or a stretch of alike passes), and what was found. The times of a
pass are affine with numbers of the size that a 70B model has on 8 chips; speed does not depend on
them but through the load. The last line is one JSON document.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.simulate import AffineTimes, Limits, Pool, Traffic, simulate, traffic

TIMES = AffineTimes(fixed_s=8e-3, decode_s=2e-5, kv_s=2e-8, prefill_s=2.5e-5)
LIMITS = Limits(n_blocks=40_000)
RATE = 20.0  # nine tenths of what this engine can serve
POOL = Pool(times=TIMES, limits=LIMITS)


@dataclass(frozen=True)
class Case:
    """Traffic and engines."""

    name: str
    traffic: Traffic
    pool: Pool = POOL
    decode: Pool | None = None
    fast_forward: bool = True


def plain(n: int, rate: float) -> Traffic:
    """Poisson arrivals, equal lengths."""
    arrival_s = traffic.poisson(n, rate, np.random.default_rng(0))
    return Traffic(arrival_s=arrival_s, prompt=traffic.fixed(n, 1024), output=traffic.fixed(n, 256))


def mixed(n: int, rate: float, shared: int = 0) -> Traffic:
    """Poisson arrivals, lengths with long tails, and one of 50 texts before each prompt."""
    rng = np.random.default_rng(0)
    return Traffic(
        arrival_s=traffic.poisson(n, rate, rng),
        prompt=shared + traffic.lognormal(n, 1024, 1.0, rng, maximum=16_384),
        output=traffic.lognormal(n, 256, 1.0, rng, maximum=4096),
        prefix=[int(text) for text in rng.integers(0, 50, n)] if shared else None,
        shared=traffic.fixed(n, shared) if shared else None,
    )


def cases(n: int) -> list[Case]:
    """The cases, the largest first."""
    part = max(1, n // 10)
    small = replace(POOL, limits=replace(LIMITS, n_blocks=8000, watermark=0.0))
    return [
        Case("poisson 1024 + 256", plain(n, RATE)),
        Case("half the load", plain(part, RATE / 2)),
        Case("half the load, pass by pass", plain(part, RATE / 2), fast_forward=False),
        Case("overload", plain(part, 2 * RATE)),
        Case("lengths with long tails", mixed(part, 0.8 * RATE)),
        Case("a shared text of 1024", mixed(part, 0.8 * RATE, 1024)),
        Case("blocks run out", mixed(part, RATE), small),
        Case("4 engines", plain(part, 4 * RATE), replace(POOL, replicas=4)),
        Case("2 prefill, 2 decode", plain(part, 2 * RATE), replace(POOL, replicas=2),
             replace(POOL, replicas=2)),
    ]  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    """One case."""
    start = time.process_time()
    result = simulate(case.traffic, case.pool, case.decode, 1e-6, fast_forward=case.fast_forward)
    cpu_s = time.process_time() - start
    found = result.summary()
    events = sum(tally.events for tally in result.tallies)
    return {
        "case": case.name,
        "requests": found.requests,
        "cpu_s": cpu_s,
        "requests_per_cpu_s": found.requests / cpu_s,
        "events": events,
        "events_per_cpu_s": events / cpu_s,
        "passes": sum(tally.passes for tally in result.tallies),
        "simulated_s": found.duration_s,
        "running": found.running,
        "ttft_p99_s": found.ttft_s.p99,
        "tpot_p50_s": found.tpot_s.p50,
        "preemptions": found.preemptions,
        "hit_rate": found.hit_rate,
    }


def main() -> int:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    found = []
    for case in cases(n):
        row = measure(case)
        found.append(row)
        print(
            f"{row['case']}: {row['requests']:,} requests in {row['cpu_s']:.1f} s CPU, "
            f"{row['requests_per_cpu_s']:,.0f} a second\n"
            f"  {row['events']:,} events for {row['passes']:,} passes, "
            f"{row['events_per_cpu_s']:,.0f} a second; {row['running']:.0f} sequences run, "
            f"{row['preemptions']:,} preemptions, hits {row['hit_rate']:.0%}",
            flush=True,
        )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
