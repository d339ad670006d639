"""Weights written as each family publishes them and read again over eight CPU devices.

`python -m tests.unit.runtime.scripts checkpoints FOLDER` prints, for each model, what was written
and whether what came back is what went out, as one JSON document.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.errors import BadFile
from shardwise.models import ModelConfig
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.weights.descriptions import describe, each
from shardwise.runtime.weights.published_weights import load_weights, save_weights
from shardwise.runtime.weights.safetensors import tensors
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime.model_cases import CASES, SIZES, read

MODELS = {name: CASES[name] for name in ("gemma3", "gpt2", "gpt_neox", "phi3")}
MODELS["mixtral"] = read("mixtral", SIZES | {"num_local_experts": 4})
LAYOUT = Layout(mesh=Mesh(data=2, fsdp=2, tensor=2), zero=3)


def table() -> Table:
    devices = np.array(jax.devices())
    return Table(rules=rules_of(LAYOUT), mesh=role_mesh(LAYOUT.sizes, devices))


def numbered(config: ModelConfig) -> Any:
    """Arrays in which every number is another one, exact in bfloat16's neighbour float32."""
    at = 0

    def made(info: Any) -> Any:
        nonlocal at
        size = int(np.prod(info.shape))
        at += size
        return jnp.asarray(np.arange(at - size, at, dtype=np.float32).reshape(info.shape))

    return each(made, describe(config))


def round_trip(folder: Path, config: ModelConfig) -> dict[str, Any]:
    weights, rules = numbered(config), table()
    save_weights(folder, config, weights, largest=20_000)
    back = load_weights(folder, config, rules, jnp.float32)
    fills = 0
    same = True
    for ours, theirs in zip(jax.tree.leaves(weights), jax.tree.leaves(back), strict=True):
        cut = tuple(map(slice, ours.shape))
        whole = np.asarray(theirs)
        same = same and np.array_equal(np.asarray(ours), whole[cut])
        fills += whole.size - ours.size
        same = same and not whole.sum() - whole[cut].sum()
    specs = each(lambda info: info.spec(rules), describe(config, rules))
    laid = jax.tree.map(lambda w, spec: w.sharding.spec == spec, back, specs)
    return {
        "same": bool(same),
        "as the table says": all(jax.tree.leaves(laid)),
        "filled": fills,
        "files": len(list(folder.glob("*.safetensors"))),
        "numbers": sum(t.size for t in tensors(folder).values()),
        "weights": sum(w.size for w in jax.tree.leaves(weights)),
    }


def refused(folder: Path, config: ModelConfig) -> list[str]:
    """What is said of files that are not those of the model."""
    try:
        load_weights(folder, config, table(), jnp.float32)
    except BadFile as error:
        return list(error.problems)
    return []


def main(folder: Path) -> None:
    """Print one object per model, and what is said where files are of another one."""
    found: dict[str, Any] = {name: round_trip(folder / name, c) for name, c in MODELS.items()}
    longer = dataclasses.replace(MODELS["gpt2"], n_positions=65)
    found["refused"] = [refused(folder / "gpt2", longer), refused(folder / "gpt2", CASES["llama"])]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
