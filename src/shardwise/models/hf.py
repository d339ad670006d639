"""Load an architecture from a preset or a Hugging Face config.json."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile, BadShape, IgnoredKey, UnknownName, close_names, nearest
from shardwise.models import families, overrides, presets
from shardwise.models.irrelevant import BESIDE
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.units import MiB

_PLAN_SCHEMA = "shardwise.plan"  # begins the key `schema` of a plan.json
MAX_BYTES = 16 * MiB  # of a config.json; the largest published ones have some hundred kB

GGUF = ".gguf"  # suffix of files of llama.cpp


def load(model: str | Path) -> ModelConfig:
    """Load an architecture by its name or from a file.

    Args:
        model: A preset ("llama3-70b", or its hub name), or the path of a config.json or of a folder
            that has one. Overrides of the fields in `overrides.FIELDS` may follow:
            "llama3-70b,n_kv_heads=1,n_layers=40".

    Raises:
        UnknownName: `model` is neither a preset nor an existing path, or an override has an unknown
            field.
        BadFile: The file is missing, unreadable or incomplete, or its architecture or one of its
            counts is unknown.
        BadUnit: The value of an override is not valid for its field.
        BadShape: The numbers do not describe a possible model.

    Warns:
        IgnoredKey: The family does not have a key of the file.

    >>> load("meta-llama/Meta-Llama-3-70B,n_kv_heads=1").n_kv_heads
    1
    """
    if not isinstance(model, str | Path):
        raise BadFile(f"model {model!r} is neither a name nor a path.")
    if isinstance(model, Path) or (_is_path(model) and _exists(model)):
        return _from_path(Path(model))
    name, *changes = model.split(",")  # changes: overrides, as "n_layers=40"
    preset = None
    if not name.startswith((".", "~", "/")):
        preset = presets.find(name.strip())
    if _is_path(name) and (_exists(name) or not preset):
        config = _from_path(Path(name))
    elif preset:
        config = from_dict(preset.read(), name=preset.name, source=preset.source)
    else:
        hint = "Or give a path to a config.json or its folder (./NAME in the current folder)."
        if _exists(name):
            hint = f"The file or folder of this name is ./{name}."
        raise UnknownName("model", name, presets.names(), hint)
    return overrides.apply(config, changes)


def from_dict(data: Mapping[str, Any], *, name: str, source: str = "") -> ModelConfig:
    """Build an architecture from the contents of a config.json.

    Args:
        data: The JSON object.
        name: Name for the model.
        source: Origin of the data, for messages.

    Raises:
        BadFile: The architecture or a count is unknown, or keys are missing or have the wrong type.
        BadShape: The numbers do not describe a possible model.
    """
    where = source or name
    kind, build = _builder(data, where)
    keys = Keys(data, kind=kind)
    try:
        config = build(keys, name)
    except BadShape as error:
        if not keys.problems:
            raise BadShape(*(f"{where}: {problem}" for problem in error.problems)) from None
    if keys.problems:
        raise BadFile(*(f"{where}: {problem}" for problem in keys.problems))
    unread = keys.unread()
    if unread.counts:
        raise BadFile(
            f"{where}: {', '.join(unread.counts)}: model type {config.family} has no such count, "
            "so parameters or bytes may be counted wrong. If it changes nothing, delete the key."
        )
    return dataclasses.replace(
        config,
        checkpoint_dtype=_checkpoint_dtype(data),
        unused_keys=tuple(sorted(unread.beside + unread.unknown)),
        ignored_keys=tuple(unread.irrelevant),
        source=source,
    )


def _checkpoint_dtype(data: Mapping[str, Any]) -> str:
    """Dtype of most weights as published: bf16 unless `quantization_config` says otherwise."""
    quantization = data.get("quantization_config")
    if isinstance(quantization, dict):
        method = quantization.get("quant_method")
        if method in ("fp8", "mxfp4"):
            return str(method)
        if method in ("awq", "gptq") and quantization.get("bits") == 4:
            return "int4"
    return "bf16"


def _builder(data: Mapping[str, Any], where: str) -> tuple[str, families.Builder]:
    """The model type or architecture that a family knows, and its `build`."""
    by_type, by_architecture = families.builders()
    model_type = data.get("model_type")
    if isinstance(model_type, str) and model_type in by_type:
        return model_type, by_type[model_type]
    architectures = data.get("architectures")
    if isinstance(architectures, list):
        for name in architectures:
            if isinstance(name, str) and name in by_architecture:
                return name, by_architecture[name]
    hint = f"Known model types: {', '.join(sorted(by_type, key=str.casefold))}."
    if str(data.get("schema")).startswith(_PLAN_SCHEMA):
        raise BadFile(
            f"{where}: a saved plan and not a model; it has its own machine. Write shardwise "
            f"explain {where}, or name a model."
        )
    unknown_name = (_first_text(model_type) or _first_text(architectures))[:80]
    if not unknown_name:
        raise BadFile(f'{where}: the file states neither "model_type" nor "architectures". {hint}')
    if close_names(unknown_name, by_type):
        hint = f"{nearest(unknown_name, by_type)} {hint}"
    raise BadFile(f'{where}: architecture "{unknown_name}" is not known. {hint}')


def _first_text(value: object) -> str:
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, str):
        return value
    return ""


def _is_path(text: str) -> bool:
    return (
        "/" in text or "\\" in text or text.endswith((".json", GGUF)) or text.startswith((".", "~"))
    )


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _from_path(path: Path) -> ModelConfig:
    file = _config_file(path)
    name = file.stem
    if name == "config":
        name = file.parent.resolve().name
    config = from_dict(_read(file), name=name or "model", source=str(file))
    unknown = [key for key in config.unused_keys if key.rpartition(".")[2] not in BESIDE]
    if unknown:
        warnings.warn(
            f"{file}: model type {config.family} has no key {', '.join(unknown)}; ignored.",
            IgnoredKey,
            stacklevel=3,
        )
    return config


def _config_file(path: Path) -> Path:
    try:
        path = path.expanduser()
        if not path.is_dir():
            return path
        file = path / "config.json"
        if file.is_file():
            return file
        if file.is_dir():
            raise BadFile(f"{file}: a folder; a config.json is a file.")
        if file.is_symlink():
            raise BadFile(f"{file}: a link to a file that is not there.")
        json_files = sorted(json_file.name for json_file in path.glob("*.json"))[:6]
        gguf_file = next(iter(sorted(path.glob(f"*{GGUF}"))), None)
    except PermissionError:
        raise BadFile(f"{path}: no permission to read this folder.") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise BadFile(f"{str(path)[:120]}: not a path ({_reason(error)}).") from None
    if gguf_file is not None:
        raise BadFile(_gguf_message(gguf_file))
    contents = "It has no JSON file."
    if json_files:
        contents = f"Its JSON files: {', '.join(json_files)}."
    raise BadFile(f"{path}: a folder without config.json. {contents}")


def _gguf_message(file: Path) -> str:
    return (
        f"{file}: a GGUF file, which has no config.json. Name the folder that it was converted "
        "from, with config.json and *.safetensors. Without one, transformers converts it: "
        f'from_pretrained("{file.parent}", gguf_file="{file.name}"), then save_pretrained(FOLDER) '
        "of the model and of the tokenizer."
    )


def _read(file: Path) -> dict[str, Any]:
    if file.suffix.lower() == GGUF and file.is_file():
        raise BadFile(_gguf_message(file))
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise BadFile(f"{file}: over {MAX_BYTES // MiB} MiB; a config.json has a few kB.")
        data = json.loads(text.decode("utf-8"))
    except FileNotFoundError:
        is_config = file.suffix.lower() == ".json" and file.parent.name
        suggestion = nearest(file.parent.name if is_config else file.name, presets.names())
        raise BadFile(
            f"{file}: no such file. To use a preset, give its name. {suggestion}"
        ) from None
    except PermissionError:
        raise BadFile(f"{file}: no permission to read it.") from None
    except UnicodeDecodeError as error:
        raise BadFile(f"{file}: not text (byte {error.start} is not UTF-8).") from None
    except json.JSONDecodeError as error:
        raise BadFile(
            f"{file}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}."
        ) from None
    except RecursionError:
        raise BadFile(f"{file}: nested too deeply for a config.json.") from None
    except (OSError, ValueError) as error:
        raise BadFile(f"{str(file)[:120]}: cannot be read ({_reason(error)}).") from None
    if not isinstance(data, dict):
        raise BadFile(
            f"{file}: a {type(data).__name__}; a config.json is a JSON object of keys and values."
        )
    return data


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).split(";")[0][:80].lower()
