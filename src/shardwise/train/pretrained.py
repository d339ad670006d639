"""The first weights out of a published model's folder, and the last ones into such a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.errors import BadFile, BadInput
from shardwise.models import ModelConfig, from_dict, load, presets
from shardwise.train.writable import writable

if TYPE_CHECKING:
    from shardwise.runtime.training.step import TrainStep
    from shardwise.runtime.weights.descriptions import Tree

CONFIG = "config.json"
DTYPE_KEYS = {"torch_dtype", "dtype"}  # in it: what transformers loads the weights in


def check(config: ModelConfig, start: str, export: str) -> None:
    """That the plan is of the model in `start`, and that files can be made in `export`.

    Raises:
        BadInput: the plan is of another model, or of a family whose tensors are not known.
        BadFile: a folder that cannot be read or written.
    """
    from shardwise.models.tensor_names import weight_names

    weight_names(config)
    if start:
        there = load(Path(start))
        if _plain(there) != _plain(config):
            raise BadInput(
                f"the plan is of {config.name}, and {start} has another model: plan with "
                f"shardwise plan {start} ... --train."
            )
    if export:
        writable(Path(export), "weights")


def first(step: TrainStep, seed: int, start: str) -> Tree:
    """The state before the first step: random weights, or those of a folder.

    Raises:
        BadFile: files that are missing, unreadable or of another model.
    """
    import jax
    import jax.numpy as jnp

    from shardwise.runtime.weights.published_weights import load_weights
    from shardwise.train.portable import Portable
    from shardwise.train.state import initial

    state = initial(step, seed)
    if not start:
        return state
    wide = load_weights(Path(start), step.config, step.table, jnp.float32)
    wide = Portable(step=step).weights_back(wide)
    for name in {"weights", "master"} & state.keys():
        laid = jax.tree.map(lambda x: x.sharding, state[name])
        state[name] = jax.jit(_like, out_shardings=laid)(wide, state[name])
    return state


def _like(wide: Tree, held: Tree) -> Tree:
    """In the dtypes that are held."""
    import jax

    found: Tree = jax.tree.map(lambda x, to: x.astype(to.dtype), wide, held)
    return found


def export(folder: str, step: TrainStep, state: Tree, start: str) -> str:
    """Write weights as the model's family publishes them, and its config.json; says what was done.

    They are the exact ones: of the master where there is one.

    The folder may be `start`, or have another model: its files are replaced when the new ones are
    complete. `first` has read `start` before, as all of its numbers are in arrays then.

    Raises:
        BadFile: the folder cannot be written.
    """
    from shardwise.runtime.weights.published_weights import save_weights
    from shardwise.train.devices import is_first
    from shardwise.train.portable import Portable

    at, config = Path(folder), step.config
    exact = state["master"] if "master" in state else state["weights"]
    plain = Portable(step=step).weights_of(exact)
    try:
        save_weights(at, config, plain)
        keys = _keys(config, start)
        if is_first() and keys is not None:
            keys |= dict.fromkeys(DTYPE_KEYS & keys.keys(), _dtype_name(plain))
            (at / CONFIG).write_text(json.dumps(keys, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise BadFile(f"{folder} cannot be written: {error.strerror}.") from None
    if keys is None:
        return f"weights are in {folder}; {CONFIG} is not written: none is of this model."
    return f"weights and {CONFIG} are in {folder}."


def _dtype_name(weights: Tree) -> str:
    """The dtype of the weights by its long name: `float32`."""
    return str(weights["outer"]["embedding"].dtype)


def _keys(config: ModelConfig, start: str) -> dict[str, Any] | None:
    """The config.json that this model was read from; a preset may have the name of a folder."""
    for place in (start, config.source):
        path = Path(place) / CONFIG if place and Path(place).is_dir() else Path(place)
        if path.is_file() and _same(found := json.loads(path.read_text("utf-8")), config):
            return found
    preset = presets.find(config.name)
    return found if preset and _same(found := preset.read(), config) else None


def _same(keys: dict[str, Any], config: ModelConfig) -> bool:
    return _plain(from_dict(keys, name=config.name)) == _plain(config)


def _plain(config: ModelConfig) -> ModelConfig:
    """What an architecture is, whatever it is called."""
    return replace(config, name="", source="", unused_keys=(), ignored_keys=(), max_seq=None)
