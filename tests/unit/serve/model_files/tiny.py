"""Tiny random models in files, as Hugging Face folders and as the GGUF files made from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shardwise.models import ModelConfig, from_dict
from shardwise.models.tensor_names import entries
from shardwise.runtime.weights.safetensors import TensorInfo, write_tensors

CORPUS = (
    "The quick brown fox jumps over the lazy dog. 12345 words, don't they say? "
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n\tdef f(x): return x + 1\n"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
VOCAB = 320

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
# GGUF architecture -> config.json of the model.
CONFIGS: Mapping[str, dict[str, Any]] = {
    "llama": {**SIZES, "model_type": "llama", "rope_theta": 5e5, "tie_word_embeddings": True},
    "qwen2": {**SIZES, "model_type": "qwen2", "rope_theta": 1e6},
    "qwen3": {**SIZES, "model_type": "qwen3", "rope_theta": 1e6},
    "gemma2": {
        **SIZES,
        "model_type": "gemma2",
        "sliding_window": 32,
        "query_pre_attn_scalar": 32,
    },
    "gemma3": {
        **SIZES,
        "model_type": "gemma3_text",
        "rope_theta": 1e6,
        "sliding_window": 32,
        "query_pre_attn_scalar": 32,
    },
    "phi3": {**SIZES, "model_type": "phi3", "rope_theta": 1e4, "sliding_window": 64},
}


def config_of(architecture: str, **changes: Any) -> ModelConfig:
    return from_dict(CONFIGS[architecture] | changes, name="tiny")


def random_tensors(config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    """Random tensors of a model in fp32, by their names in Hugging Face files."""
    random = np.random.default_rng(0)
    return {
        entry.tensor: random.normal(size=entry.layout.file_shape, scale=0.1).astype(np.float32)
        for entry in entries(config)
    }


def bpe_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer that splits off single digits."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS] * 4, trainer)
    return tokenizer


def write_folder(folder: Path, architecture: str = "llama", **changes: Any) -> Path:
    """Write a model as a Hugging Face folder with a tokenizer; `changes` are of its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = CONFIGS[architecture] | changes
    (folder / "config.json").write_text(json.dumps(keys))
    tensors = random_tensors(from_dict(keys, name="tiny"))
    infos = [TensorInfo(name=name, shape=x.shape, dtype=x.dtype) for name, x in tensors.items()]
    write_tensors(folder, infos, lambda info: tensors[info.name])
    bpe_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def write_gguf(
    path: Path,
    architecture: str = "llama",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    **changes: Any,
) -> Path:
    """Write a model as llama.cpp's converter does.

    Args:
        kind: type of the matrices.
        changes: keys of the file that replace others, named in full; None removes a key.
    """
    config = config_of(architecture)
    writer = GGUFWriter(str(path), architecture)
    for key, value in (_model_values(architecture) | _tokenizer_values() | changes).items():
        _add(writer, key, value)
    names = get_tensor_name_map(MODEL_ARCH[architecture.upper()], 2)
    for name, tensor in random_tensors(config).items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name
        converted = _converted(architecture, name, tensor)
        if tensor.ndim == 1:
            writer.add_tensor(gguf_name, converted)
        else:
            writer.add_tensor(gguf_name, quantize(converted, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(architecture: str, name: str, tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A tensor as convert_hf_to_gguf.py changes it."""
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        n_heads = SIZES["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = tensor.reshape(n_heads, 2, len(tensor) // int(n_heads) // 2, -1)
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def _model_values(architecture: str) -> dict[str, Any]:
    keys = CONFIGS[architecture]
    values = {
        "embedding_length": keys["hidden_size"],
        "feed_forward_length": keys["intermediate_size"],
        "block_count": keys["num_hidden_layers"],
        "context_length": keys["max_position_embeddings"],
        "attention.head_count": keys["num_attention_heads"],
        "attention.head_count_kv": keys["num_key_value_heads"],
        "attention.key_length": keys["head_dim"],
        "attention.layer_norm_rms_epsilon": keys["rms_norm_eps"],
    }
    if "rope_theta" in keys:
        values["rope.freq_base"] = keys["rope_theta"]
    if "sliding_window" in keys:
        values["attention.sliding_window"] = keys["sliding_window"]
    return {f"{architecture}.{key}": value for key, value in values.items()}


def _tokenizer_values() -> dict[str, Any]:
    state = json.loads(bpe_tokenizer().to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in CONTROL_TOKENS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in state["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
