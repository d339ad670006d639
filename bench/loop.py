"""Predicted beside measured steps on this CPU as 1, 2 and 8 devices, and loads of a server.

    python bench/loop.py               # all rows, into bench/loop.json and docs/hardware.md
    python bench/loop.py tensor moe    # those whose names hold a word
    python bench/loop.py serving       # those of serving: see bench/loop_serve.py

Closes the loop of the command line: `hw measure N`, `plan` on the file that it wrote, `train`, in
fresh processes. Nothing in a plan comes from the rows that it predicts. A product in NumPy is timed
beside the measurement and before and after each row, for serving one that reads memory: the table
shows how much slower the machine was during the row. A machine is measured again when its file says
that it was busy or is older than MAX_AGE_S, and once more for a row in which its speed was another.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import kept
import loop_serve
import numpy as np
from kept import Found, cells
from loop_serve import shardwise

FOLDER = Path(tempfile.gettempdir()) / "shardwise-loop"  # measured machines
PAGE = kept.ROOT / "docs" / "hardware.md"
MAX_AGE_S = 900.0  # of a measurement
BUSY = "The machine was busy"  # says a file that was measured beside other programs
MEASUREMENTS = 2  # at most, of a machine that was busy
SAME_SPEED = 1.2  # slowdown from which a row is repeated, once
STEPS = 14  # the first two are left out
LEFT_OUT = 2
# Products in NumPy that show the machine's speed: one in caches, and one that reads memory.
REFERENCES = {"training": (1024, 1024), "serving": (8192, 1)}
REFERENCE_S = 0.4
GOAL = 0.15  # median error


class Row(NamedTuple):
    """A training job: a Llama or a Mixtral, its batch, and the layout that the plan has to take."""

    name: str
    n_devices: int
    mesh: str
    batch: str
    layers: int
    d_model: int
    vocab: int
    dtype: str = "fp32"
    remat: str = "none"
    n_experts: int = 0

    def config(self) -> Found:
        """The model's config.json; it has a head for 64 columns, and half as many KV heads."""
        n_heads = max(2, self.d_model // 64)
        config: Found = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": self.layers,
            "hidden_size": self.d_model,
            "intermediate_size": 3 * self.d_model,
            "num_attention_heads": n_heads,
            "num_key_value_heads": n_heads // 2,
            "vocab_size": self.vocab,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
        }
        if self.n_experts:
            config["architectures"], config["model_type"] = ["MixtralForCausalLM"], "mixtral"
            config["num_local_experts"], config["num_experts_per_tok"] = self.n_experts, 2
            config["intermediate_size"] = self.d_model
        return config


ROWS = [
    Row("one narrow", 1, "data=1", "8x256", 4, 256, 264),
    Row("one wide", 1, "data=1", "4x256", 2, 512, 4096),
    Row("one wide bf16", 1, "data=1", "8x128", 3, 512, 4096, "bf16", "full"),
    Row("one deep", 1, "data=1", "2x512", 6, 256, 4096, remat="full"),
    Row("one moe", 1, "data=1", "8x128", 4, 256, 1024, n_experts=4),
    Row("two data", 2, "data=2", "16x128", 4, 256, 264),
    Row("two fsdp", 2, "fsdp=2", "8x256", 4, 512, 4096, "bf16"),
    Row("two tensor", 2, "tensor=2", "8x128", 4, 512, 4096),
    Row("two pipe", 2, "pipe=2", "16x128", 4, 256, 1024),
    Row("two long", 2, "fsdp=2", "2x1024", 2, 256, 1024, remat="full"),
    Row("eight data", 8, "data=8", "64x128", 4, 128, 264),
    Row("eight fsdp", 8, "fsdp=8", "32x128", 4, 256, 4096, "bf16", "full"),
    Row("eight both", 8, "fsdp=4,tensor=2", "16x128", 2, 512, 1024),
    Row("eight pipe", 8, "fsdp=4,pipe=2", "32x128", 4, 128, 1024),
]
BY_NAME = {row.name: row for row in ROWS}
SERVING = {f"serving {dtype}": dtype for dtype in ("bf16", "int8")}


def steady(run: Callable[[], Found], n_devices: int) -> Found:
    """A row, on a machine that is measured again if its speed has changed meanwhile."""
    found = run()
    if not 1 / SAME_SPEED < found["slowdown"] < SAME_SPEED:
        (FOLDER / f"host{n_devices}.json").unlink()
        found = run()
    return found


def step(row: Row) -> Found:
    """Planned and measured seconds of a step, and the machine's speed then and when measured."""
    machine, then_s = measured(row.n_devices, "training")
    with tempfile.TemporaryDirectory() as folder:
        model, plan, log = (str(Path(folder) / name) for name in ("model", "plan.json", "log"))
        Path(model).mkdir()
        (Path(model) / "config.json").write_text(json.dumps(row.config()))
        job = ("--batch", row.batch, "--dtype", row.dtype, "--remat", row.remat)
        place = f"{machine}:{row.n_devices}"
        shardwise("plan", model, place, "--train", *job, "--mesh", row.mesh, "-o", plan)
        before_s = reference_s("training")
        shardwise("train", plan, "--data", tokens(), "--steps", str(STEPS), "--log", log, "--json")
        now_s = (before_s + reference_s("training")) / 2
        lines = [json.loads(line) for line in Path(log).read_text().splitlines()]
        step = json.loads(Path(plan).read_text())["estimate"]["step_s"]
    steps_s = [line["step_s"] for line in lines if "step_s" in line][LEFT_OUT:]
    ratio = step["expected"] / statistics.median(steps_s)
    return {
        "name": row.name,
        "verdict": f"planned / measured {ratio:.2f}",
        "planned_s": step["expected"],
        "measured_s": statistics.median(steps_s),
        "fastest_s": min(steps_s),
        "ratio": ratio,
        "slowdown": now_s / then_s,
    }


def tokens() -> str:
    """Tokens to train on: the bytes of the pages of this repository."""
    folder = FOLDER / "tokens"
    if not folder.exists():
        shardwise(
            "data", "tokenize", str(kept.ROOT / "docs"), "--glob", "*.md", "--out", str(folder)
        )
    return str(folder)


def measured(n_devices: int, reference: str, max_age_s: float = MAX_AGE_S) -> tuple[Path, float]:
    """The measured machine of N devices, and the seconds of a reference meanwhile."""
    FOLDER.mkdir(exist_ok=True)
    path, kept_at = FOLDER / f"host{n_devices}.toml", FOLDER / f"host{n_devices}.json"
    if not kept_at.exists() or time.time() - path.stat().st_mtime > max_age_s:
        for _ in range(MEASUREMENTS):
            before_s = {name: reference_s(name) for name in REFERENCES}
            shardwise("hw", "measure", str(n_devices), "-o", str(path))
            meanwhile_s = {name: (s + reference_s(name)) / 2 for name, s in before_s.items()}
            kept_at.write_text(json.dumps(meanwhile_s))
            if BUSY not in path.read_text():
                break
    return path, json.loads(kept_at.read_text())[reference]


def reference_s(name: str) -> float:
    """Median seconds of a product in NumPy: the speed of the machine, whatever JAX does."""
    dim, columns = REFERENCES[name]
    x = np.ones((dim, dim), np.float32)
    y = np.ones((dim, columns), np.float32)
    trials = []
    end = time.perf_counter() + REFERENCE_S
    while time.perf_counter() < end or len(trials) < 2:
        start = time.perf_counter()
        x @ y
        trials.append(time.perf_counter() - start)
    return statistics.median(trials)


def serving(name: str) -> Found:
    """Loads of a server of SmolLM2-135M, on a machine that is measured just before.

    Has a median error for each figure, see `loop_serve`.
    """
    machine, then_s = measured(1, "serving", max_age_s=0.0)
    before_s = reference_s("serving")
    with tempfile.TemporaryDirectory() as folder:
        loads = loop_serve.compared(str(machine), SERVING[name], folder)
    slowdown = (before_s + reference_s("serving")) / 2 / then_s
    return {
        "name": name,
        "verdict": loop_serve.summary(loads),
        "loads": loads,
        "slowdown": slowdown,
    }


def table(rows: Sequence[Found]) -> str:
    """The rows that are kept, and their median errors."""
    head = ("row", "devices", "layout", "model", "job", "planned", "measured", "ratio", "slowdown")
    lines = [cells(head), "|---|--:|---|---|---|--:|--:|--:|--:|"]
    steps = [found for found in rows if "ratio" in found]
    for found in steps:
        row = BY_NAME[found["name"]]
        experts = f", {row.n_experts} experts" if row.n_experts else ""
        model = f"{row.layers} layers of {row.d_model}, vocabulary {row.vocab:,}{experts}"
        times = [f"{1e3 * found[key]:.0f} ms" for key in ("planned_s", "measured_s")]
        job = f"{row.batch}, {row.dtype}, remat {row.remat}"
        numbers = (*times, f"{found['ratio']:.2f}", f"{found['slowdown']:.2f}")
        lines.append(cells((row.name, str(row.n_devices), row.mesh, model, job, *numbers)))
    if steps:
        lines += ["", summary(steps)]
    loads = [load for found in rows for load in found.get("loads", [])]
    if loads:
        lines += ["", loop_serve.header(), *map(loop_serve.line, loads)]
        slowdowns = [f"{found['slowdown']:.2f}" for found in rows if "loads" in found]
        lines += ["", f"{loop_serve.summary(loads)}. Slowdown: {' and '.join(slowdowns)}."]
    return "\n".join(lines)


def summary(steps: Sequence[Found]) -> str:
    """Median error of the steps, as measured and at the speed of the measured machine."""
    error = median_error([step["ratio"] for step in steps])
    same_speed = median_error([step["ratio"] * step["slowdown"] for step in steps])
    return (
        f"Median error of {len(steps)} steps: {error:.0%} (goal: {GOAL:.0%}); {same_speed:.0%} if "
        "the measured times are divided by the slowdown of the machine since it was measured."
    )


def median_error(ratios: Sequence[float]) -> float:
    """Median of the relative errors."""
    return statistics.median([abs(ratio - 1) for ratio in ratios])


def row_of(name: str) -> Found:
    """A row of training or of serving."""
    if name in SERVING:
        return steady(functools.partial(serving, name), 1)
    return steady(functools.partial(step, BY_NAME[name]), BY_NAME[name].n_devices)


def main(arguments: list[str]) -> int:
    """Run the chosen rows; all without words."""
    if arguments[:1] == ["--row"]:
        name = arguments[1]
        print(json.dumps(row_of(name)))
        return 0
    rows = kept.refresh(__file__, [*BY_NAME, *SERVING], arguments, table, "bench/loop.py", PAGE)
    print(table(rows))
    print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
