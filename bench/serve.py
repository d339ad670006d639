"""Tokens a second of serving on this CPU: shardwise, transformers and llama.cpp, one model.

    pip install 'shardwise[serve]' transformers torch
    LLAMA_PYTHON=PYTHON python bench/serve.py MODEL [WORD ...]

MODEL is a folder of published weights of a Llama, such as SmolLM2-135M. Rows whose names hold a
word are run; all without. PYTHON has llama-cpp-python and gguf, perhaps in another environment; by
default it is the one that runs this. A side that is not installed is left out.

Each side runs in a process of its own, with all cores. Sides take turns with the same prompts, so
that what else the machine does falls on all of them. They generate greedily; a side of llama.cpp
reads a GGUF file that is written here from MODEL. A row whose sides do not begin their outputs
with the same tokens measures nothing: it fails, and so does the run.

Prints a table, and ends with one JSON document.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Found = dict[str, Any]
Prompts = list[list[int]]

ROUNDS = 5  # turns of a side
WORKER = Path(__file__).with_name("serve_worker.py")
OURS = "shardwise"


@dataclass(frozen=True)
class Shape:
    """What is asked in one turn: `n_prompts` prompts of `prompt` tokens, `output` tokens of each.

    With one token of output the prompts are timed, with more the steps after the first token.
    """

    n_prompts: int
    prompt: int
    output: int


SHAPES = {
    "decode 1": Shape(1, 128, 33),
    "decode 4": Shape(4, 128, 33),
    "decode 16": Shape(16, 128, 17),
    "prefill": Shape(1, 256, 1),
}
# The sides of each precision: names, and the dtypes that their workers are told.
SIDES = {
    "f32": {
        OURS: "fp32",
        "transformers": "float32",
        "llama.cpp F32": "F32",
        "llama.cpp F16": "F16",
    },
    "bf16": {OURS: "bf16", "transformers": "bfloat16", "llama.cpp BF16": "BF16"},
    "int8": {OURS: "int8", "llama.cpp Q8_0": "Q8_0"},
}
# Prompts whose first output token has to be that of our side. All in f32; roundings of bf16 and
# int8 choose another token where two are almost as probable.
CHECKED = 16
FEWEST_EQUAL = {"f32": 15, "bf16": 11, "int8": 11}


class Side:
    """A worker that waits until it is its turn.

    Args:
        name: of the side; its first word names the worker's module.
        dtype: of the weights, as the side calls it.
        model: folder of the published weights.
        folder: where the side may write files.
    """

    def __init__(self, name: str, dtype: str, model: Path, folder: str) -> None:
        kind = name.split()[0]
        python = os.environ.get("LLAMA_PYTHON", sys.executable)
        python = python if kind == "llama.cpp" else sys.executable
        command = [python, str(WORKER), kind, dtype, str(model), folder]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: Found = self._read()

    def _read(self) -> Any:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit("a side ended before its turn")
        return json.loads(line)

    def generate(self, prompts: Prompts, output: int) -> Found:
        """See `serve_worker.Generated`."""
        if self.process.stdin:
            self.process.stdin.write(json.dumps({"prompts": prompts, "output": output}) + "\n")
            self.process.stdin.flush()
        return dict(self._read())

    def close(self) -> None:
        """Let it end."""
        self.process.communicate()


def started(precision: str, model: Path, folder: str) -> tuple[dict[str, Side], dict[str, str]]:
    """The sides that are installed, and why the others are left out."""
    sides, missing = {}, {}
    for name, dtype in SIDES[precision].items():
        side = Side(name, dtype, model, folder)
        if "missing" in side.said:
            missing[name] = side.said["missing"]
            side.close()
        else:
            sides[name] = side
    return sides, missing


def prompts_of(shape: Shape, vocab: int, seed: int) -> Prompts:
    """Random prompts; no two begin alike, so that no cache of prefixes helps."""
    random = np.random.default_rng(seed)
    drawn = random.integers(vocab // 100, vocab, (shape.n_prompts, shape.prompt))
    return [[int(token) for token in row] for row in drawn]


def tokens_per_s(shape: Shape, generated: Mapping[str, Any]) -> float:
    """Of the prompts, or of the outputs after their first tokens."""
    if shape.output == 1:
        return shape.n_prompts * shape.prompt / float(generated["first_s"])
    return float(generated["decoded"] / generated["decode_s"])


def measured(precision: str, words: Sequence[str], model: Path) -> list[Found]:
    """The rows of one precision."""
    chosen = {n: s for n, s in SHAPES.items() if wanted(f"{precision} {n}", words)}
    if not chosen:
        return []
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        sides, missing = started(precision, model, folder)
        verdict = judged(precision, sides, vocab)
        rows = []
        for name, shape in chosen.items():
            speeds: dict[str, list[float]] = {side: [] for side in sides}
            for seed in range(-1, ROUNDS):  # the first turn of all is to warm up
                prompts = prompts_of(shape, vocab, seed + 2)
                for side_name, side in sides.items():
                    speed = tokens_per_s(shape, side.generate(prompts, shape.output))
                    speeds[side_name] += [speed] * (seed >= 0)
            rows.append(
                {
                    "name": f"{precision} {name}",
                    "tokens_per_s": {n: spread(each) for n, each in speeds.items()},
                    "ratio": ratios(speeds),
                    "versions": {n: side.said["version"] for n, side in sides.items()},
                    "missing": missing,
                    **verdict,
                }
            )
        for side in sides.values():
            side.close()
    return rows


def judged(precision: str, sides: Mapping[str, Side], vocab: int) -> Found:
    """Whether all sides are the same model, by the first tokens of outputs."""
    shape = Shape(CHECKED, 32, 1)
    prompts = prompts_of(shape, vocab, 0)
    first = {
        name: [tokens[0] for tokens in side.generate(prompts, 1)["tokens"]]
        for name, side in sides.items()
    }
    same = {
        name: sum(a == b for a, b in zip(tokens, first[OURS], strict=True))
        for name, tokens in first.items()
    }
    few = {name: n for name, n in same.items() if n < FEWEST_EQUAL[precision]}
    if not few:
        return {"verdict": "measured", "same_first_tokens": same}
    counts = ", ".join(f"{name} {n}" for name, n in few.items())
    note = f"of {CHECKED} outputs too few begin as ours: {counts}"
    return {"verdict": "apart", "note": note, "same_first_tokens": same}


def ratios(speeds: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Our speed over that of each other side, turn by turn."""
    return {
        name: spread([ours / other for ours, other in zip(speeds[OURS], each, strict=True)])
        for name, each in speeds.items()
        if name != OURS
    }


def spread(values: list[float]) -> list[float]:
    """Median, least and most."""
    return [statistics.median(values), min(values), max(values)]


def wanted(name: str, words: Sequence[str]) -> bool:
    """Whether a row is to be run."""
    return not words or any(word in name for word in words)


def table(rows: Sequence[Found]) -> str:
    """Tokens a second of each side, and ours over the other's with its spread; then what failed."""
    lines = ["| row | shardwise | other side | tokens/s | ratio | least to most |"]
    lines += ["|---|--:|---|--:|--:|--:|"]
    for row in rows:
        if row["verdict"] != "measured":
            continue
        ours = row["tokens_per_s"][OURS][0]
        for name, (middle, least, most) in row["ratio"].items():
            theirs = row["tokens_per_s"][name][0]
            lines.append(
                f"| {row['name']} | {ours:,.1f} | {name} | {theirs:,.1f} | {middle:.2f} "
                f"| {least:.2f} to {most:.2f} |"
            )
    missing = {name: why for row in rows for name, why in row["missing"].items()}
    failed = [row for row in rows if row["verdict"] != "measured"]
    lines += [""] * bool(missing or failed)
    lines += [f"- left out: {name}: {why}" for name, why in missing.items()]
    lines += [f"- {row['verdict']}: {row['name']}: {row['note']}" for row in failed]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the chosen rows."""
    if not arguments or not (Path(arguments[0]) / "config.json").exists():
        raise SystemExit("which model? python bench/serve.py FOLDER_OF_A_MODEL [WORD ...]")
    model, words = Path(arguments[0]), arguments[1:]
    rows = []
    for precision in SIDES:
        rows += measured(precision, words, model)
    print(table(rows))
    print(json.dumps(rows))
    return int(any(row["verdict"] != "measured" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
