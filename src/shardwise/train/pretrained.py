"""Import of initial weights from the folder of a published model, and export of final weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise import units
from shardwise.errors import BadFile, BadInput
from shardwise.models import ModelConfig, from_dict, load, presets
from shardwise.train.export_tokenizer import export_tokenizer
from shardwise.train.requirements import require_jax
from shardwise.train.writable import ensure_writable

if TYPE_CHECKING:
    from shardwise.models.tensor_names import Entry
    from shardwise.runtime.training.step import TrainStep
    from shardwise.runtime.weights.descriptions import Tree
    from shardwise.runtime.weights.published_weights import PublishedModel
    from shardwise.search.training.problem import Case
    from shardwise.train.tokens import TokenSet

CONFIG = "config.json"
TEXT_CONFIG = "text_config"  # key of a multimodal config.json: its language model
# Keys that end in "_config" and do not describe another part of the model.
NOT_TOWERS = {TEXT_CONFIG, "generation_config", "quantization_config"}
# Files beside a model that are copied to an export: tokenizer, chat template, processors of images
# and sound, settings of generation.
COMPANIONS = (
    "tokenizer*",
    "*.tiktoken",
    "tekken.json",
    "spiece.model",
    "sentencepiece*.model",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "generation_config.json",
    "*processor_config.json",
)
DTYPE_KEYS = {"torch_dtype", "dtype"}  # of config.json: dtype in which transformers loads weights


def check_start(config: ModelConfig, start: str) -> None:
    """Check that the folder `start` has the model of the plan, with all weights.

    Raises:
        BadInput: it has another model, or the tensor names of its family are unknown.
        BadFile: a file is missing, unreadable or of another model.
        MissingExtra: JAX is not installed.
    """
    require_jax()
    from shardwise.runtime.weights.published_weights import find_tensors

    if _architecture(load(Path(start))) != _architecture(config):
        raise BadInput(
            f"the plan is for {config.name}, and {start} has another model: plan with "
            f"shardwise plan {start} ... --train."
        )
    find_tensors(Path(start), config)


def check_export(case: Case, start: str, export: str) -> None:
    """Check that the last weights can be written to the folder `export`, and will be a whole model.

    Raises:
        BadInput: the tensor names of the family are unknown, or the model has other towers, such
            as vision, that are not in `start`.
        BadFile: the folder cannot be written, or has too little room.
        MissingExtra: JAX is not installed.
    """
    require_jax()
    from shardwise.runtime.dtypes import dtype

    ensure_writable(Path(export), "weights")
    model = _published(case.model, start)
    weights_dtype = dtype(case.job.master or case.job.weights)
    _ensure_room(Path(export), model, lambda entry: weights_dtype)


def _published(config: ModelConfig, start: str) -> PublishedModel:
    """Return the tensors to export: those of the model, and those of its other towers in `start`.

    Raises:
        BadInput: there are other towers, and `start` does not have them.
    """
    from shardwise.runtime.weights.published_weights import published_model

    source = None
    if start and Path(start).is_dir():
        source = Path(start)
    towers = _towers(_config_keys(config, start) or {})
    model = published_model(config, source, with_towers=bool(towers))
    if towers and not model.towers:
        raise BadInput(
            f"{config.name} has more than a language model ({', '.join(towers)}), and an export "
            "without those weights cannot be loaded. Start from a folder that has them: --from "
            f"FOLDER; or plan with the {TEXT_CONFIG} alone as config.json."
        )
    return model


def _towers(keys: Mapping[str, Any]) -> list[str]:
    """Return the keys of a multimodal config.json that describe more than its language model."""
    if TEXT_CONFIG not in keys:
        return []
    return [key for key in keys if key.endswith("_config") and key not in NOT_TOWERS]


def _ensure_room(folder: Path, model: PublishedModel, dtype_of: Callable[[Entry], Any]) -> None:
    """Raise BadFile if the file system of a folder has too little room for the tensors."""
    needed_bytes = sum(info.bytes for info in model.infos(dtype_of))
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise BadFile(
            f"weights of {units.show_bytes(needed_bytes)} do not fit in {folder}: "
            f"{units.show_bytes(free_bytes)} are free there."
        )


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


def export_weights(folder: str, step: TrainStep, state: Tree, start: str, tokens: TokenSet) -> str:
    """Write weights and config.json in the published format of the model; return a message.

    If the state has master weights, those are written. Tensors have the names that they have in
    `start`, whose other towers, tokenizer and generation settings are copied. A model without a
    tokenizer gets the one of `tokens`. Files in the folder are replaced once the new ones are
    complete, so the folder may be `start`, or have the files of another model.

    Raises:
        BadFile: the folder cannot be written, or has too little room.
    """
    from shardwise.runtime.processes.rendezvous import is_first
    from shardwise.runtime.weights.published_weights import save_weights
    from shardwise.train.portable import PortableState

    path = Path(folder)
    config = step.config
    weights = state["master"] if "master" in state else state["weights"]
    portable = PortableState(step=step).weights_to_portable(weights)
    model = _published(config, start)
    keys = _config_keys(config, start)
    try:
        if is_first():
            path.mkdir(parents=True, exist_ok=True)
            _ensure_room(path, model, lambda entry: portable["outer"]["embedding"].dtype)
        save_weights(path, config, portable, model=model)
        copied = []
        if is_first() and keys is not None:
            keys |= dict.fromkeys(DTYPE_KEYS & keys.keys(), _dtype_name(portable))
            (path / CONFIG).write_text(json.dumps(keys, indent=2) + "\n", "utf-8")
            copied = _copy_companions(start or config.source, path)
            in_place = start and Path(start).resolve() == path.resolve()
            if not in_place and not any(name.startswith("tokenizer") for name in copied):
                copied += export_tokenizer(tokens, path)
    except OSError as error:
        raise BadFile(f"{folder} cannot be written: {error.strerror}.") from None
    if keys is None:
        return f"weights are in {folder}, without a {CONFIG}: the model was not read from one."
    *names, last = ["weights", CONFIG, *copied]
    return f"{', '.join(names)} and {last} are in {folder}."


def _copy_companions(source: str, folder: Path) -> list[str]:
    """Copy the files beside a model that serving needs; return their names.

    Args:
        source: folder of the model, or its config.json; empty for none.
        folder: where the files are copied to.
    """
    origin = Path(source)
    if origin.is_file():
        origin = origin.parent
    if not source or not origin.is_dir() or origin.resolve() == folder.resolve():
        return []
    names = []
    for path in sorted(origin.iterdir()):
        if path.is_file() and any(path.match(pattern) for pattern in COMPANIONS):
            shutil.copyfile(path, folder / path.name)
            names.append(path.name)
    return names


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
