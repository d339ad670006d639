"""Speed of serving on this CPU: shardwise, transformers and llama.cpp, one model.

    pip install 'shardwise[serve]' transformers torch
    LLAMA_PYTHON=PYTHON python bench/serve.py MODEL [WORD ...]

MODEL is a folder of published weights of a Llama, such as SmolLM2-135M. Rows whose names hold a
word are run; all without. PYTHON has llama-cpp-python and gguf, perhaps in another environment; by
default it is the one that runs this. A side that is not installed is left out.

Each side runs in a process of its own, with all cores. Sides take turns with the same prompts, so
that what else the machine does falls on all of them. They generate greedily; a side of llama.cpp
reads a GGUF file that is written here from MODEL. A row whose sides do not begin their outputs
with the same tokens measures nothing: it fails, and so does the run.

Decode rows set the bytes that a step reads over the memory's bandwidth, which has a turn like the
sides. In rows of load, requests arrive at a fixed rate whether or not a side keeps up. llama.cpp
then runs all sequences in one batch per step, as its server does (its Python binding has no such
loop; `serve_llama.py` has one), and transformers serves one request at a time.

Prints tables, and ends with one JSON document.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from serve_report import tables
from serve_roofline import Bandwidth, step_bytes
from serve_side import Side

Found = dict[str, Any]
Prompts = list[list[int]]

ROUNDS = 5  # turns of a side
LOAD_ROUNDS = 3
OURS = "shardwise"


@dataclass(frozen=True)
class Shape:
    """What is asked in one turn: `n_prompts` prompts of `prompt` tokens, `output` tokens of each.

    With one token of output the prompts are timed, with more the steps after the first token.
    """

    n_prompts: int
    prompt: int
    output: int


@dataclass(frozen=True)
class Load:
    """Requests that arrive one by one, `every_s` seconds apart."""

    n_prompts: int = 16
    prompt: int = 128
    output: int = 32
    every_s: float = 0.6


LOAD = Load()
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


def prompts_of(shape: Shape | Load, vocab: int, seed: int) -> Prompts:
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
    shapes = {n: s for n, s in SHAPES.items() if wanted(f"{precision} {n}", words)}
    loads = {"load": LOAD} if wanted(f"{precision} load", words) else {}
    if not shapes and not loads:
        return []
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        sides, missing = started(precision, model, folder)
        common = {
            "versions": {n: side.said["version"] for n, side in sides.items()},
            "missing": missing,
            **judged(precision, sides, vocab),
        }
        rows = [
            {"name": f"{precision} {name}", **speeds_of(shape, sides, vocab, model), **common}
            for name, shape in shapes.items()
        ]
        rows += [
            {"name": f"{precision} {name}", **under_load(load, sides, vocab), **common}
            for name, load in loads.items()
        ]
        for side in sides.values():
            side.close()
    return rows


def speeds_of(shape: Shape, sides: Mapping[str, Side], vocab: int, model: Path) -> Found:
    """Tokens a second of the sides, and in decode rows their share of the memory's bandwidth."""
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    bandwidth, bytes_per_s = Bandwidth(), []
    for seed in range(-1, ROUNDS):  # the first turn of all is to warm up
        prompts = prompts_of(shape, vocab, seed + 2)
        bytes_per_s += [bandwidth.measure()] * (seed >= 0)
        for name, side in sides.items():
            generated = side.ask("generate", prompts=prompts, output=shape.output)
            speeds[name] += [tokens_per_s(shape, generated)] * (seed >= 0)
    found = {
        "tokens_per_s": {n: spread(each) for n, each in speeds.items()},
        "ratio": ratios(speeds),
    }
    if shape.output == 1:
        return found
    length = shape.prompt + shape.output / 2
    shares = {}
    for name, side in sides.items():
        read = step_bytes(model, side.kind, side.dtype, shape.n_prompts, length)
        steps_per_s = [speed / shape.n_prompts for speed in speeds[name]]
        shares[name] = spread(
            [read * n / limit for n, limit in zip(steps_per_s, bytes_per_s, strict=True)]
        )
    return found | {"bandwidth_share": shares, "bytes_per_s": spread(bytes_per_s)}


def under_load(load: Load, sides: Mapping[str, Side], vocab: int) -> Found:
    """TTFT and tokens a second of the sides when requests arrive one by one."""
    ttfts: dict[str, list[float]] = {side: [] for side in sides}
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for seed in range(LOAD_ROUNDS):
        prompts = prompts_of(load, vocab, seed + 100)
        for name, side in sides.items():
            served = side.ask("serve", prompts=prompts, output=load.output, every_s=load.every_s)
            ttfts[name].append(statistics.median(served["ttft_s"]))
            speeds[name].append(load.n_prompts * load.output / served["seconds"])
    return {
        "ttft_s": {n: spread(each) for n, each in ttfts.items()},
        "tokens_per_s": {n: spread(each) for n, each in speeds.items()},
        "ttft_ratio": ratios(ttfts),
    }


def judged(precision: str, sides: Mapping[str, Side], vocab: int) -> Found:
    """Whether all sides are the same model, by the first tokens of outputs."""
    shape = Shape(CHECKED, 32, 1)
    prompts = prompts_of(shape, vocab, 0)
    first = {
        name: [tokens[0] for tokens in side.ask("generate", prompts=prompts, output=1)["tokens"]]
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
    """Whether a row is to be run: it has a word, or several in this order."""
    return not words or any(f" {word} " in f" {name} " for word in words)


def main(arguments: list[str]) -> int:
    """Run the chosen rows."""
    if not arguments or not (Path(arguments[0]) / "config.json").exists():
        raise SystemExit("which model? python bench/serve.py FOLDER_OF_A_MODEL [WORD ...]")
    model, words = Path(arguments[0]), arguments[1:]
    rows = []
    for precision in SIDES:
        rows += measured(precision, words, model)
    print(tables(rows, OURS))
    print(json.dumps(rows))
    return int(any(row["verdict"] != "measured" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
