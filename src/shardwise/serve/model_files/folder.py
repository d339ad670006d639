"""A model in a folder of Hugging Face, or in one that `train --export` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.errors import BadFile
from shardwise.models import ModelConfig, load
from shardwise.runtime.tokenizer import (
    TOKENIZER_FILE,
    ByteTokenizer,
    FileTokenizer,
    file_tokenizer,
    open_tokenizer,
)
from shardwise.serve.model_files.served_model import ServedModel

if TYPE_CHECKING:
    from shardwise.runtime.layout.sharding import Table
    from shardwise.runtime.serving.engine_state import EngineState
    from shardwise.runtime.weights.descriptions import Tree

CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
GENERATION_CONFIG = "generation_config.json"
TEMPLATE_FILE = "chat_template.jinja"
LARGEST_BYTE_VOCAB = 512  # of a model that was trained on bytes: 257 tokens, padded
# Files of tokenizers that are not read; transformers converts them.
OTHER_TOKENIZERS = ("*.model", "*.tiktoken", "tekken.json", "vocab.*", "merges.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderWeights:
    """Weights in the *.safetensors files of a folder."""

    folder: Path
    config: ModelConfig

    def load(self, table: Table, dtype: Any) -> Tree:
        """Load all weights, sharded by the table."""
        from shardwise.runtime.weights.published_weights import load_weights

        return load_weights(self.folder, self.config, table, dtype)

    def load_for(self, engine: EngineState) -> Tree:
        """Load all weights as an engine has them."""
        from shardwise.runtime.weights.published_weights import find_tensors
        from shardwise.serve.model_files.loading import load_for

        return load_for(engine, find_tensors(self.folder, self.config))


def read_folder(folder: Path) -> ServedModel:
    """Read all but the weights of a model in a folder.

    Raises:
        BadFile: a file is missing, malformed, or of a kind that is not served.
        MissingExtra: the package `tokenizers` is not installed.
    """
    config = load(folder)
    _check_weights(folder, config)
    texts = _special_tokens(folder)
    stop_ids = _stop_ids(folder)
    if (folder / TOKENIZER_FILE).exists():
        inner = open_tokenizer(folder / TOKENIZER_FILE, extra="serve")
        _check_vocabulary(folder, config, inner)
        stop = _id_of(inner, texts.get("eos_token"))
        if stop is not None:
            stop_ids.add(stop)
        bos_token = _id_of(inner, texts.get("bos_token"))
        tokenizer: FileTokenizer | ByteTokenizer = file_tokenizer(inner, min(stop_ids, default=-1))
    else:
        tokenizer = _byte_tokenizer(folder, config)
        inner = None
        stop_ids = {tokenizer.end}
        bos_token = None
    return ServedModel(
        name=folder.resolve().name,
        source=folder,
        config=config,
        weights=FolderWeights(folder=folder, config=config),
        tokenizer=tokenizer,
        max_context=_max_context(folder, config),
        stop_tokens=frozenset(stop_ids),
        bos_token=bos_token,
        adds_bos=bos_token is not None and _adds_bos(folder, inner, bos_token),
        chat_template=_chat_template(folder),
        special_tokens=texts,
    )


def _check_weights(folder: Path, config: ModelConfig) -> None:
    """Raise BadFile if weights are missing, of another model, or quantized."""
    from shardwise.runtime.weights.published_weights import find_tensors

    if config.checkpoint_dtype != "bf16" or "quantization_config" in _read_json(folder, CONFIG):
        raise BadFile(
            f"{folder / CONFIG}: quantized weights (quantization_config) are not served. Name a "
            "folder with weights of 16 or 32 bits, which can be quantized as they are loaded, or a "
            "GGUF file."
        )
    find_tensors(folder, config)


def _check_vocabulary(folder: Path, config: ModelConfig, inner: Any) -> None:
    highest = max(inner.get_vocab(with_added_tokens=True).values())
    if highest >= config.vocab:
        raise BadFile(
            f"{folder / TOKENIZER_FILE} has tokens up to {highest:,}, and the model embeddings of "
            f"{config.vocab:,}: they are not of one model."
        )


def _byte_tokenizer(folder: Path, config: ModelConfig) -> ByteTokenizer:
    """The tokenizer of a model that was trained on bytes.

    Raises:
        BadFile: the model cannot be one.
    """
    others = sorted(file.name for glob in OTHER_TOKENIZERS for file in folder.glob(glob))
    if others:
        raise BadFile(
            f"{folder} has no {TOKENIZER_FILE}, only {', '.join(others)}. transformers converts "
            "it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )
    tokenizer = ByteTokenizer()
    if not tokenizer.vocab <= config.vocab <= LARGEST_BYTE_VOCAB:
        raise BadFile(
            f"{folder} has no {TOKENIZER_FILE}: copy the one that the model was trained with. "
            f"Without it, tokens are bytes, for vocabularies of {tokenizer.vocab} to "
            f"{LARGEST_BYTE_VOCAB}; this model has {config.vocab:,}."
        )
    return tokenizer


def _stop_ids(folder: Path) -> set[int]:
    """Ids of end tokens in the generation settings, or else in the config."""
    for name in (GENERATION_CONFIG, CONFIG):
        keys = _read_json(folder, name)
        value = keys.get("eos_token_id", keys.get("text_config", {}).get("eos_token_id"))
        ids = value if isinstance(value, list) else [value]
        stop_ids = {token for token in ids if type(token) is int}
        if stop_ids:
            return stop_ids
    return set()


def _special_tokens(folder: Path) -> dict[str, str]:
    """Texts of the special tokens, by the names that chat templates use."""
    texts = {}
    for name in (SPECIAL_TOKENS, TOKENIZER_CONFIG):
        for key, value in _read_json(folder, name).items():
            if isinstance(value, dict):
                value = value.get("content")
            if key.endswith("_token") and isinstance(value, str):
                texts[key] = value
    return texts


def _id_of(inner: Any, text: str | None) -> int | None:
    """Id of a token by its text; None if there is none."""
    if text is None:
        return None
    token = inner.token_to_id(text)
    return None if token is None else int(token)


def _adds_bos(folder: Path, inner: Any, bos_token: int) -> bool:
    """Whether the tokenizer puts the begin token before a text."""
    stated = _read_json(folder, TOKENIZER_CONFIG).get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    return list(inner.encode("", add_special_tokens=True).ids[:1]) == [bos_token]


def _chat_template(folder: Path) -> str | None:
    """The template in its own file, or else in the tokenizer's config; of several, the default."""
    path = folder / TEMPLATE_FILE
    if path.is_file():
        return path.read_text("utf-8")
    template = _read_json(folder, TOKENIZER_CONFIG).get("chat_template")
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _max_context(folder: Path, config: ModelConfig) -> int:
    if config.max_seq is None:
        raise BadFile(f"{folder / CONFIG} does not state the longest sequence of the model.")
    return config.max_seq


def _read_json(folder: Path, name: str) -> Mapping[str, Any]:
    """Read a JSON object from a file of a folder; {} if there is no such file.

    Raises:
        BadFile: it is not a JSON object.
    """
    path = folder / name
    if not path.is_file():
        return {}
    try:
        keys = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: not JSON: {error}.") from None
    if not isinstance(keys, dict):
        raise BadFile(f"{path}: a {type(keys).__name__}; it is an object of keys and values.")
    return keys
