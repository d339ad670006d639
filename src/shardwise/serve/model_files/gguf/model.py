"""A model in a GGUF file, with what serving it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwise.models import from_dict
from shardwise.runtime.tokenizer import file_tokenizer
from shardwise.serve.model_files.gguf.architectures import config_keys
from shardwise.serve.model_files.gguf.file import GgufFile, open_gguf
from shardwise.serve.model_files.gguf.tokenizer import CONTROL, LLAMA3_NAMES, build_tokenizer
from shardwise.serve.model_files.gguf.weights import GgufWeights
from shardwise.serve.model_files.served_model import ServedModel

# Keys of tokens that end an output: of a text, a turn, a message.
STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Texts of tokens that end an output; llama.cpp looks for them too, since many files lack the keys.
STOP_TEXTS = frozenset(
    {
        *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"),
        *("<|end|>", "<end_of_turn>", "</s>", "<eos>"),
    }
)
SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def read_gguf(path: Path, name: str) -> ServedModel:
    """Read all but the weights of a model in a GGUF file.

    Raises:
        BadFile: the file is missing, malformed or not whole, or its architecture, tokenizer or
            type of weights is not known.
        MissingExtra: the package `gguf` or `tokenizers` is not installed.
    """
    file = open_gguf(path)
    config = from_dict(config_keys(file), name=name, source=str(path))
    weights = GgufWeights(file=file, config=config)
    weights.tensors()  # raises if one is missing
    stop_tokens = _stop_tokens(file)
    return ServedModel(
        name=name,
        source=path,
        config=config,
        weights=weights,
        tokenizer=file_tokenizer(build_tokenizer(file), min(stop_tokens, default=-1), path.name),
        max_context=int(file.of_model("context_length")),
        stop_tokens=stop_tokens,
        bos_token=file.of_tokenizer("bos_token_id", None),
        adds_bos=_adds_bos(file),
        chat_template=file.value("tokenizer.chat_template", None),
        special_tokens=_special_tokens(file),
    )


def _stop_tokens(file: GgufFile) -> frozenset[int]:
    stop_tokens = {file.of_tokenizer(key, None) for key in STOP_KEYS} - {None}
    kinds = file.of_tokenizer("token_type", ())
    for index, (token, kind) in enumerate(zip(file.of_tokenizer("tokens"), kinds, strict=False)):
        if kind == CONTROL and token in STOP_TEXTS:
            stop_tokens.add(index)
    return frozenset(stop_tokens)


def _adds_bos(file: GgufFile) -> bool:
    """Whether a prompt gets a begin token; llama.cpp's defaults if the file does not state it."""
    if file.of_tokenizer("bos_token_id", None) is None:
        return False
    default = file.of_tokenizer("model") == "llama" or file.of_tokenizer("pre", "") in LLAMA3_NAMES
    return bool(file.of_tokenizer("add_bos_token", default))


def _special_tokens(file: GgufFile) -> dict[str, Any]:
    """Texts of the special tokens, by the names that chat templates use."""
    tokens = file.of_tokenizer("tokens")
    texts = {}
    for name, key in SPECIAL_TOKENS.items():
        index = file.of_tokenizer(key, None)
        if index is not None and index < len(tokens):
            texts[name] = tokens[index]
    return texts
