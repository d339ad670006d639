"""Tokens a second of a small Llama in training on this CPU: shardwise against PyTorch.

Both sides run in processes of their own, which take turns (ours, theirs, ours, ...), so that what
else the machine does falls on both. The same weights, the same batch, all cores, AdamW, clipping;
ours is the step that `shardwise train` compiles of a plan for this CPU as one device. Matmul peaks
are measured in the same processes between the turns; the better one counts for both sides.

    python bench/train.py [WORD ...]    # rows whose names hold a word; all without

A row whose sides do not have the same losses measures nothing: it fails, and so does the run.

Prints the table, keeps rows in `bench/train.json` and in docs/train.md, and ends with one JSON
document. `python bench/train.py --row NAME` runs one row and prints it.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from kept import ROOT, Found, cells, refresh

from shardwise.runtime.malloc import keep_freed_memory

SEQ, RATE = 512, 3e-4
ROUNDS, BUSY_S = 5, 4.0  # turns of a side, and seconds of steps in one
PEAK_SIZE, PEAK_S = 1024, 0.5
PAGE = ROOT / "docs" / "train.md"
SIZES: dict[str, dict[str, int]] = {
    "10M": {"n_layers": 6, "d_model": 256, "d_ff": 1024, "n_heads": 4, "vocab": 8192},
    "100M": {"n_layers": 12, "d_model": 768, "d_ff": 2048, "n_heads": 12, "vocab": 8192},
}
BATCH = {"10M": 8, "100M": 4}
DTYPES = {
    "f32": {"weights": "fp32", "compute": "fp32", "gradients": "fp32"},
    "bf16": {"weights": "bf16", "compute": "bf16", "gradients": "bf16", "master": "fp32"},
}
ROWS = [f"{size} {dtype}" for dtype in DTYPES for size in SIZES]
# How far a loss may be from PyTorch's, over it. Sums in another order are 1e-7 of it in f32, and a
# step that is left out 7e-2. bf16 has 8 bits of a number, 4e-3 of it, and rounds in other places.
APART = {"f32": 1e-3, "bf16": 2e-2}


class Side(Protocol):
    """One framework with a compiled step on one batch."""

    def step(self) -> float:
        """One step; its loss."""
        ...


def worker(which: str, name: str, folder: Path) -> None:
    """A side as a process: says its first loss, then runs what it reads from stdin."""
    dtype = name.split()[1]
    keep_freed_memory()  # for both: what the trainer sets for itself
    side: Any = importlib.import_module("train_ours" if which == "ours" else "train_torch")
    about = json.loads((folder / "about.json").read_text())
    trainer: Side = side.Trainer(about, folder)
    losses = [trainer.step() for _ in range(3)]
    print(json.dumps({"losses": losses}), flush=True)
    for line in sys.stdin:
        what, amount = line.split()
        if what == "peak":
            print(json.dumps(side.peak(dtype, PEAK_SIZE, float(amount))), flush=True)
            continue
        start = time.perf_counter()
        for _ in range(int(amount)):
            trainer.step()
        print(json.dumps((time.perf_counter() - start) / int(amount)), flush=True)


class Turns:
    """A worker that waits until it is its turn."""

    def __init__(self, which: str, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--worker", which, name, str(folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.losses: list[float] = self._read()["losses"]

    def _read(self) -> Any:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit("a side ended before its turn")
        return json.loads(line)

    def ask(self, what: str, amount: float) -> Any:
        """What the worker gives back: seconds of a step, or a peak."""
        if self.process.stdin:
            self.process.stdin.write(f"{what} {amount}\n")
            self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Let it end."""
        self.process.communicate()


def row(name: str) -> Found:
    """Both sides in turns: medians, the least and the most of each, and the peak."""
    size, dtype = name.split()
    about = {**SIZES[size], "batch": BATCH[size], "seq": SEQ, "dtypes": DTYPES[dtype]}
    about |= {"dtype": dtype, "rate": RATE, "eps": 1e-6, "theta": 10000.0}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "about.json").write_text(json.dumps(about))
        ours = Turns("ours", name, Path(folder))
        theirs = Turns("torch", name, Path(folder))
        sides = {"ours": ours, "torch": theirs}
        each = {n: max(1, round(BUSY_S / s.ask("step", 1))) for n, s in sides.items()}
        took: dict[str, list[float]] = {n: [] for n in sides}
        peaks: dict[str, list[float]] = {n: [] for n in sides}
        for _ in range(ROUNDS):
            for n, side in sides.items():
                took[n].append(side.ask("step", each[n]))
                peaks[n].append(side.ask("peak", PEAK_S))
        for side in sides.values():
            side.close()
    apart = [abs(a - b) for a, b in zip(ours.losses, theirs.losses, strict=True)]
    tokens = BATCH[size] * SEQ
    return {
        "name": name,
        "n_parameters": parameters(SIZES[size]),
        "losses": {n: side.losses for n, side in sides.items()},
        "losses_apart": apart,
        "tokens_per_s": {n: spread([tokens / s for s in took[n]]) for n in sides},
        "ratio": spread([t / o for o, t in zip(took["ours"], took["torch"], strict=True)]),
        "peak_flops_per_s": {n: max(peaks[n]) for n in sides},
        **judged(dtype, ours.losses, theirs.losses),
    }


def judged(dtype: str, ours: Sequence[float], theirs: Sequence[float]) -> Found:
    """Whether both sides compute the same, by the losses of the first steps."""
    most = APART[dtype]
    far = [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)]
    if all(x <= most for x in far):  # false of what is no number
        return {"verdict": "measured"}
    numbers = "; ".join(f"{a:.6g} and {b:.6g}" for a, b in zip(ours, theirs, strict=True))
    note = f"losses of both sides are {numbers}: apart by more than {most:g} of PyTorch's"
    return {"verdict": "apart", "note": note}


def spread(values: list[float]) -> list[float]:
    """Median, least and most."""
    return [statistics.median(values), min(values), max(values)]


def parameters(sizes: dict[str, int]) -> int:
    """Of the model: attention, feed-forward, norms, and both tables."""
    D, F, V = sizes["d_model"], sizes["d_ff"], sizes["vocab"]
    return sizes["n_layers"] * (4 * D * D + 3 * D * F + 2 * D) + 2 * V * D + D


def flops_of_token(sizes: dict[str, int]) -> float:
    """Of a training step: 6 for each parameter of a product, and causal attention."""
    D, n_layers = sizes["d_model"], sizes["n_layers"]
    products = parameters(sizes) - sizes["vocab"] * D - (2 * n_layers + 1) * D
    return 6 * products + 6 * n_layers * SEQ * D


def table(rows: list[Found]) -> str:
    """Ours and theirs, their ratio with its spread, and the share of the peak; then what failed."""
    head = ["model", "shardwise", "PyTorch", "ratio", "least to most", "of the peak"]
    lines = [cells(head), "|---|--:|--:|--:|--:|--:|"]
    for found in rows:
        if found["verdict"] != "measured":
            continue
        size = found["name"].split()[0]
        ours, theirs = (found["tokens_per_s"][n] for n in ("ours", "torch"))
        peak = max(found["peak_flops_per_s"].values())
        shares = [flops_of_token(SIZES[size]) * side[0] / peak for side in (ours, theirs)]
        middle, least, most = found["ratio"]
        lines.append(
            cells(
                [
                    found["name"],
                    f"{ours[0]:,.0f}",
                    f"{theirs[0]:,.0f}",
                    f"{middle:.2f}",
                    f"{least:.2f} to {most:.2f}",
                    f"{shares[0]:.0%}, {shares[1]:.0%}",
                ]
            )
        )
    failed = [one for one in rows if one["verdict"] != "measured"]
    lines += [""] * bool(failed)
    lines += [f"- {one['verdict']}: {one['name']}: {one.get('note', '')}" for one in failed]
    return "\n".join(lines)


def main(words: list[str]) -> int:
    if words[:1] == ["--worker"]:
        worker(words[1], words[2], Path(words[3]))
        return 0
    if words[:1] == ["--row"]:
        found = row(words[1])
        print(json.dumps(found))
        if found["verdict"] != "measured":
            raise SystemExit(found["note"])  # the note of the row that is kept
        return 0
    kept = refresh(__file__, ROWS, words, table, "bench/train.py", PAGE)
    print(table(kept))
    print(json.dumps(kept))
    return int(any(one["verdict"] != "measured" for one in kept))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
