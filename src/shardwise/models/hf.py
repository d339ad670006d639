"""From a name or a Hugging Face config.json to a ModelConfig."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile, BadShape, UnknownName, nearest
from shardwise.models import families, overrides, presets
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig


def load(model: str | Path) -> ModelConfig:
    """The architecture that a name or path says.

    Args:
        model: A preset ("llama3-70b", or its hub name), a config.json, a folder with one; each may
            be followed by overrides of our fields: "llama3-70b,n_kv_heads=1,n_layers=40".

    Raises:
        UnknownName: No preset and no path of that name, or no field of an override's name.
        BadFile: The file is missing, unreadable, no config of a known architecture, or incomplete.
        BadUnit: An override that is not a value of its field.
        BadShape: Numbers that no model can have.

    >>> load("meta-llama/Meta-Llama-3-70B,n_kv_heads=1").n_kv_heads
    1
    """
    if not isinstance(model, str | Path):
        raise BadFile(f"model {model!r} is no name and no path.")
    if isinstance(model, Path) or (_is_path(model) and _exists(model)):
        return _from_path(Path(model))
    name, *changes = model.split(",")
    preset = None if name.startswith((".", "~", "/")) else presets.find(name.strip())
    if _is_path(name) and (_exists(name) or not preset):
        config = _from_path(Path(name))
    elif preset:
        config = from_dict(preset.read(), name=preset.name, source=preset.source)
    else:
        hint = "A path to a config.json or its folder works too; write ./NAME for one here."
        raise UnknownName("model", name[:80], presets.names(), hint)
    return overrides.apply(config, changes)


def from_dict(data: Mapping[str, Any], *, name: str, source: str = "") -> ModelConfig:
    """The architecture that the contents of a config.json describe.

    Args:
        data: The JSON object.
        name: What to call the model.
        source: Where it was read from, for messages.

    Raises:
        BadFile: An unknown architecture, keys that are missing or of the wrong type.
        BadShape: Numbers that no model can have.
    """
    where = source or name
    keys = Keys(data)
    try:
        config = _builder(data, where)(keys, name)
    except BadShape as error:
        problems = keys.problems or list(error.problems)
        raise (BadFile if keys.problems else BadShape)(
            *(f"{where}: {p}" for p in problems)
        ) from None
    if keys.problems:
        raise BadFile(*(f"{where}: {p}" for p in keys.problems))
    unused, ignored = keys.leftover()
    return dataclasses.replace(config, unused_keys=unused, ignored_keys=ignored, source=source)


def _builder(data: Mapping[str, Any], where: str) -> families.Builder:
    by_type, by_architecture = families.builders()
    model_type, architectures = data.get("model_type"), data.get("architectures")
    if isinstance(model_type, str) and model_type in by_type:
        return by_type[model_type]
    for architecture in architectures if isinstance(architectures, list) else ():
        if isinstance(architecture, str) and architecture in by_architecture:
            return by_architecture[architecture]
    known = f"Known model types: {', '.join(sorted(by_type, key=str.casefold))}."
    said = model_type if isinstance(model_type, str) else _first_text(architectures)
    if not said:
        raise BadFile(
            f'{where}: neither "model_type" nor "architectures" says what it describes. {known}'
        )
    close = nearest(said[:80], by_type)
    choices = f"{close} {known}" if close.startswith("Close") else known
    raise BadFile(f'{where}: architecture "{said[:80]}" is not known. {choices}')


def _first_text(value: object) -> str:
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else ""


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.endswith(".json") or text.startswith((".", "~"))


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _from_path(path: Path) -> ModelConfig:
    file = _config_file(path)
    stem = file.parent.resolve().name if file.stem == "config" else file.stem
    return from_dict(_read(file), name=stem or "model", source=str(file))


def _config_file(path: Path) -> Path:
    try:
        path = path.expanduser()
        if not path.is_dir():
            return path
        file = path / "config.json"
        if file.is_file():
            return file
        found = sorted(p.name for p in path.glob("*.json"))[:6]
    except PermissionError:
        raise BadFile(f"{path}: no permission to look into it.") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise BadFile(f"{str(path)[:120]}: not a path ({_reason(error)}).") from None
    there = f"Its JSON files: {', '.join(found)}." if found else "It has no JSON file."
    raise BadFile(f"{path}: a folder without config.json. {there}")


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        close = nearest(file.parent.name or file.stem, presets.names())
        raise BadFile(f"{file}: no such file. Presets need no file. {close}") from None
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
        kind = "a list" if isinstance(data, list) else f"a {type(data).__name__}"
        raise BadFile(f"{file}: {kind}; a config.json is a JSON object of keys and values.")
    return data


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).split(";")[0][:80].lower()
