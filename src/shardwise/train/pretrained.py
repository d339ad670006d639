"""Import of initial weights from the folder of a published model, and export of final weights."""

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
DTYPE_KEYS = {"torch_dtype", "dtype"}  # of config.json: dtype in which transformers loads weights


def check_folders(config: ModelConfig, start: str, export: str) -> None:
    """Check that `start` has the model of the plan and that `export` can be written.

    Either folder may be "" for none.

    Raises:
        BadInput: the plan has another model, or the tensor names of its family are unknown.
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
    """Return the state before the first step.

    Its weights are those in the folder `start`, or random ones if `start` is empty.

    Raises:
        BadFile: a file of `start` is missing, unreadable or of another model.
    """
    import jax
    import jax.numpy as jnp

    from shardwise.runtime.weights.published_weights import load_weights
    from shardwise.train.portable import PortableState
    from shardwise.train.state import random_state

    state = random_state(step, seed)
    if not start:
        return state
    weights = load_weights(Path(start), step.config, step.table, jnp.float32)
    weights = PortableState(step=step).weights_to_step(weights)
    for name in {"weights", "master"} & state.keys():
        shardings = jax.tree.map(lambda x: x.sharding, state[name])
        state[name] = jax.jit(_cast_like, out_shardings=shardings)(weights, state[name])
    return state


def _cast_like(arrays: Tree, targets: Tree) -> Tree:
    """Cast arrays to the dtypes of targets."""
    import jax

    cast: Tree = jax.tree.map(lambda x, target: x.astype(target.dtype), arrays, targets)
    return cast


def export_weights(folder: str, step: TrainStep, state: Tree, start: str) -> str:
    """Write weights and config.json in the published format of the model; return a message.

    If the state has master weights, those are written. Files in the folder are replaced once the
    new ones are complete, so the folder may be `start`, or have the files of another model.

    Raises:
        BadFile: the folder cannot be written.
    """
    from shardwise.runtime.weights.published_weights import save_weights
    from shardwise.train.devices import is_first
    from shardwise.train.portable import PortableState

    path = Path(folder)
    config = step.config
    weights = state["master"] if "master" in state else state["weights"]
    portable = PortableState(step=step).weights_to_portable(weights)
    try:
        save_weights(path, config, portable)
        keys = _config_keys(config, start)
        if is_first() and keys is not None:
            keys |= dict.fromkeys(DTYPE_KEYS & keys.keys(), _dtype_name(portable))
            (path / CONFIG).write_text(json.dumps(keys, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise BadFile(f"{folder} cannot be written: {error.strerror}.") from None
    if keys is None:
        return f"weights are in {folder}, without a {CONFIG}: the model was not read from one."
    return f"weights and {CONFIG} are in {folder}."


def _dtype_name(weights: Tree) -> str:
    """Return the dtype of the weights by its NumPy name, such as `float32`."""
    return str(weights["outer"]["embedding"].dtype)


def _config_keys(config: ModelConfig, start: str) -> dict[str, Any] | None:
    """Return the config.json that the model was read from, or None if there is none.

    It may be in the folder `start`, at the path `config.source`, or be a preset. A file is used
    only if it describes this model, since a folder may have the name of a preset.
    """
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
    """Return the configuration without the fields that do not describe weights."""
    return replace(config, name="", source="", unused_keys=(), ignored_keys=(), max_seq=None)
