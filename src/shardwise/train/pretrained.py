"""Initial weights from the folder of a published model, and final weights into such a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.errors import BadFile, BadInput
from shardwise.models import ModelConfig, from_dict, load, presets
from shardwise.train.writable import ensure_writable

if TYPE_CHECKING:
    from shardwise.runtime.training.step import TrainStep
    from shardwise.runtime.weights.descriptions import Tree

CONFIG = "config.json"
DTYPE_KEYS = {"torch_dtype", "dtype"}  # in it: what transformers loads the weights in


def check_folders(config: ModelConfig, start: str, export: str) -> None:
    """Check that `start` has the model of the plan, and that `export` can be written.

    Raises:
        BadInput: the plan has another model, or its family's tensor names are unknown.
        BadFile: a folder cannot be read or written.
    """
    from shardwise.models.tensor_names import weight_names

    weight_names(config)
    if start and _architecture(load(Path(start))) != _architecture(config):
        raise BadInput(
            f"the plan is for {config.name}, and {start} has another model: plan with "
            f"shardwise plan {start} ... --train."
        )
    if export:
        ensure_writable(Path(export), "weights")


def initial_state(step: TrainStep, seed: int, start: str) -> Tree:
    """The state before the first step, with random weights or those of the folder `start`.

    Raises:
        BadFile: files are missing, unreadable or of another model.
    """
    import jax
    import jax.numpy as jnp

    from shardwise.runtime.weights.published_weights import load_weights
    from shardwise.train.portable import PortableState
    from shardwise.train.state import random_state

    state = random_state(step, seed)
    if not start:
        return state
    exact = load_weights(Path(start), step.config, step.table, jnp.float32)
    exact = PortableState(step=step).weights_to_step(exact)
    for name in {"weights", "master"} & state.keys():
        shardings = jax.tree.map(lambda x: x.sharding, state[name])
        state[name] = jax.jit(_cast_like, out_shardings=shardings)(exact, state[name])
    return state


def _cast_like(arrays: Tree, targets: Tree) -> Tree:
    """Cast arrays to the dtypes of targets."""
    import jax

    cast: Tree = jax.tree.map(lambda x, target: x.astype(target.dtype), arrays, targets)
    return cast


def export_weights(folder: str, step: TrainStep, state: Tree, start: str) -> str:
    """Write weights and config.json as the model's family publishes them; return a message.

    Where the state has master weights, they are what is written.

    The folder may be `start`, or have another model: its files are replaced when the new ones are
    complete. All numbers of `start` are in arrays by then.

    Raises:
        BadFile: the folder cannot be written.
    """
    from shardwise.runtime.weights.published_weights import save_weights
    from shardwise.train.devices import is_first
    from shardwise.train.portable import PortableState

    path = Path(folder)
    config = step.config
    exact = state["master"] if "master" in state else state["weights"]
    plain = PortableState(step=step).weights_to_portable(exact)
    try:
        save_weights(path, config, plain)
        keys = _config_keys(config, start)
        if is_first() and keys is not None:
            keys |= dict.fromkeys(DTYPE_KEYS & keys.keys(), _dtype_name(plain))
            (path / CONFIG).write_text(json.dumps(keys, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise BadFile(f"{folder} cannot be written: {error.strerror}.") from None
    if keys is None:
        return f"weights are in {folder}, without a {CONFIG}: the model was not read from one."
    return f"weights and {CONFIG} are in {folder}."


def _dtype_name(weights: Tree) -> str:
    """The dtype of the weights by its long name: `float32`."""
    return str(weights["outer"]["embedding"].dtype)


def _config_keys(config: ModelConfig, start: str) -> dict[str, Any] | None:
    """The config.json that this model was read from; a preset may have the name of a folder."""
    for source in (start, config.source):
        path = Path(source)
        if source and path.is_dir():
            path = path / CONFIG
        if path.is_file():
            keys: dict[str, Any] = json.loads(path.read_text("utf-8"))
            if _describes(keys, config):
                return keys
    preset = presets.find(config.name)
    if preset:
        keys = preset.read()
        if _describes(keys, config):
            return keys
    return None


def _describes(keys: dict[str, Any], config: ModelConfig) -> bool:
    return _architecture(from_dict(keys, name=config.name)) == _architecture(config)


def _architecture(config: ModelConfig) -> ModelConfig:
    """The architecture alone, without its name and source."""
    return replace(config, name="", source="", unused_keys=(), ignored_keys=(), max_seq=None)
