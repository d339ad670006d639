"""CPU time of starting the command line, warm: user + system time of the child, not wall time.

Prints medians, their ratio to a bare interpreter, and the limits; the last line is one JSON
document. Usage: python bench/startup.py [RUNS]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

SHARDWISE = str(Path(sys.executable).parent / "shardwise")
CASES: dict[str, tuple[tuple[str, ...], float | None]] = {
    "python": ((sys.executable, "-c", "pass"), None),
    "help": ((SHARDWISE, "--help"), 0.150),
    "fit": ((SHARDWISE, "fit", "llama3-70b", "v5e", "--serve"), 0.300),
}


def cpu_seconds(command: tuple[str, ...]) -> float:
    """Run `command` once, its output thrown away: user + system seconds of that process."""
    # Installed programs have byte code, whatever the environment says of new one.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    # The pipe is read to its end first: a child that waits for room in it would never end.
    errors = child.stderr.read() if child.stderr else b""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command)}: exit {child.returncode}\n{errors.decode()}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    medians = {}
    for name, (command, _) in CASES.items():
        cpu_seconds(command)  # writes byte code and warms the page cache
        medians[name] = statistics.median(cpu_seconds(command) for _ in range(runs))
    rows = {}
    for name, (command, limit) in CASES.items():
        cpu = medians[name]
        rows[name] = {"cpu_s": round(cpu, 4), "ratio": round(cpu / medians["python"], 2)}
        told = f"{cpu * 1e3:6.0f} ms  x{cpu / medians['python']:4.1f}"
        if limit is not None:
            rows[name]["limit_s"] = limit
            told += f"  limit {limit * 1e3:.0f} ms: {'kept' if cpu <= limit else 'BROKEN'}"
        print(f"{told}  {Path(command[0]).name} {' '.join(command[1:])}")
    print(json.dumps({"runs": runs, "statistic": "median", **rows}))


if __name__ == "__main__":
    main()
