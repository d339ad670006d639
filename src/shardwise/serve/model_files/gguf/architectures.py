"""Architectures of GGUF files that are served: their config.json, and the names of their tensors.

Sources: llama.cpp, src/llama-arch.cpp and src/llama-model.cpp (keys and tensors), and its script
convert_hf_to_gguf.py (how tensors differ from those of Hugging Face).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwise.errors import BadFile
from shardwise.serve.model_files.gguf.file import GgufFile, float_of

ConfigKeys = dict[str, Any]

# Module of a layer in Hugging Face -> part of a layer in GGUF.
LAYER_PARTS: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PHI3_PARTS = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
OUTER_PARTS: Mapping[str, str] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}

# Scalings of rotary positions in Llama 3.1 and 3.2; GGUF has the resulting factors alone.
LLAMA3_FACTORS = (8.0, 16.0, 32.0)
LLAMA3_SCALING: ConfigKeys = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How a GGUF file differs from the Hugging Face folder that it was made from.

    Args:
        model_type: model type of the config.json.
        parts: modules of a layer whose names are not those in `LAYER_PARTS`.
        interleaved: whether rows of queries and keys were reordered to pairs of rotary positions.
        norm_plus_one: whether 1 was added to the scales of norms.
        more_keys: makes the keys of config.json that only this architecture has.
    """

    model_type: str
    parts: Mapping[str, str] = field(default_factory=dict)
    interleaved: bool = False
    norm_plus_one: bool = False
    more_keys: Callable[[GgufFile], ConfigKeys] = lambda file: {}

    def tensor_name(self, name: str) -> str:
        """Name in GGUF of a tensor with this name in Hugging Face files."""
        module, _, kind = name.rpartition(".")
        if module in OUTER_PARTS:
            return f"{OUTER_PARTS[module]}.{kind}"
        _, _, layer, part = module.split(".", 3)
        return f"blk.{layer}.{self.parts.get(part) or LAYER_PARTS[part]}.{kind}"


def architecture_of(file: GgufFile) -> Architecture:
    """The architecture of a file.

    Raises:
        BadFile: it is not served, or the file has experts.
    """
    name = file.architecture
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise BadFile(
            f'{file.path}: architecture "{name}" is not served from GGUF; these are: '
            f"{', '.join(ARCHITECTURES)}. Serve its Hugging Face folder."
        )
    if file.of_model("expert_count", 0):
        raise BadFile(
            f"{file.path}: a mixture of {file.of_model('expert_count')} experts, which is not "
            "served from GGUF. Serve its Hugging Face folder."
        )
    return architecture


def config_keys(file: GgufFile) -> ConfigKeys:
    """The config.json of the model in a file.

    Raises:
        BadFile: the architecture is not served, or a key is missing.
    """
    architecture = architecture_of(file)
    embedding = file.shape("token_embd.weight")
    if embedding is None:
        raise BadFile(f"{file.path} has no tensor token_embd.weight: it is not a whole model.")
    hidden_size = file.of_model("embedding_length")
    n_heads = file.of_model("attention.head_count")
    keys: ConfigKeys = {
        "model_type": architecture.model_type,
        "hidden_size": hidden_size,
        "intermediate_size": file.of_model("feed_forward_length"),
        "max_position_embeddings": file.of_model("context_length"),
        "num_attention_heads": n_heads,
        "num_hidden_layers": file.of_model("block_count"),
        "num_key_value_heads": file.of_model("attention.head_count_kv", n_heads),
        "rms_norm_eps": float_of(file.of_model("attention.layer_norm_rms_epsilon")),
        "rope_theta": float_of(file.of_model("rope.freq_base", 10_000.0)),
        "head_dim": file.of_model("attention.key_length", hidden_size // n_heads),
        "tie_word_embeddings": file.shape("output.weight") is None,
        "vocab_size": embedding[0],
    }
    scaling = _rope_scaling(file)
    if scaling:
        keys["rope_scaling"] = scaling
    return keys | architecture.more_keys(file)


def _rope_scaling(file: GgufFile) -> ConfigKeys:
    """The scaling of rotary positions; {} for none."""
    kind = file.of_model("rope.scaling.type", "none")
    if kind == "none" and file.shape("rope_freqs.weight") is not None:
        return _llama3_scaling(file)
    if kind == "linear":
        return {"rope_type": "linear", "factor": file.of_model("rope.scaling.factor")}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": file.of_model("rope.scaling.factor"),
            "original_max_position_embeddings": file.of_model(
                "rope.scaling.original_context_length"
            ),
        }
    if kind in ("none", "longrope"):
        return {}
    raise BadFile(f'{file.path}: rope scaling "{kind}" is not served from GGUF.')


def _llama3_scaling(file: GgufFile) -> ConfigKeys:
    """The scaling of Llama 3 whose factors are those of the file.

    Raises:
        BadFile: none of those known has these factors.
    """
    factors = np.asarray(file.tensors["rope_freqs.weight"].data, np.float32)
    theta = file.of_model("rope.freq_base", 10_000.0)
    for factor in LLAMA3_FACTORS:
        scaling = {**LLAMA3_SCALING, "factor": factor}
        if np.allclose(factors, _llama3_factors(scaling, theta, factors.size), rtol=1e-4):
            return scaling
    raise BadFile(f"{file.path}: the factors in rope_freqs.weight are not those of Llama 3.")


def _llama3_factors(scaling: ConfigKeys, theta: float, n: int) -> np.ndarray[Any, Any]:
    """By what a scaling of Llama 3 divides each of n rotary frequencies."""
    wavelengths = 2 * math.pi * theta ** (np.arange(n) / n)
    low = scaling["low_freq_factor"]
    high = scaling["high_freq_factor"]
    periods = scaling["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((periods - low) / (high - low), 0, 1)
    factors: np.ndarray[Any, Any] = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return factors


def _llama_keys(file: GgufFile) -> ConfigKeys:
    return {"attention_bias": file.shape("blk.0.attn_q.bias") is not None}


def _gemma2_keys(file: GgufFile) -> ConfigKeys:
    return {
        "sliding_window": file.of_model("attention.sliding_window", 4096),
        "attn_logit_softcapping": file.of_model("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.of_model("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scalar(file, n_layers_27b=46),
    }


def _gemma3_keys(file: GgufFile) -> ConfigKeys:
    return {
        "sliding_window": file.of_model("attention.sliding_window", 4096),
        "query_pre_attn_scalar": _query_scalar(file, n_layers_27b=62),
        "rope_theta": float_of(file.of_model("rope.freq_base", 1e6)),
        "rope_local_base_freq": float_of(file.of_model("rope.freq_base_swa", 10_000.0)),
    }


def _query_scalar(file: GgufFile, n_layers_27b: int) -> float:
    """What queries are divided by the root of: the head width, but for the model of 27B.

    Files do not state it; llama.cpp knows that model by its number of layers.
    """
    if file.of_model("block_count") == n_layers_27b:
        n_heads = int(file.of_model("attention.head_count"))
        return float(file.of_model("embedding_length") / n_heads)
    return float(file.of_model("attention.key_length"))


def _phi3_keys(file: GgufFile) -> ConfigKeys:
    keys: ConfigKeys = {}
    window = file.of_model("attention.sliding_window", 0)
    if window:
        keys["sliding_window"] = window
    original = file.of_model("rope.scaling.original_context_length", None)
    if original:
        keys["original_max_position_embeddings"] = original
    if file.shape("rope_factors_long.weight") is not None:
        keys["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": file.tensors["rope_factors_short.weight"].data.tolist(),
            "long_factor": file.tensors["rope_factors_long.weight"].data.tolist(),
        }
    return keys


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(model_type="llama", interleaved=True, more_keys=_llama_keys),
    "qwen2": Architecture(model_type="qwen2"),
    "qwen3": Architecture(model_type="qwen3"),
    "gemma2": Architecture(
        model_type="gemma2", parts=GEMMA_PARTS, norm_plus_one=True, more_keys=_gemma2_keys
    ),
    "gemma3": Architecture(
        model_type="gemma3_text", parts=GEMMA_PARTS, norm_plus_one=True, more_keys=_gemma3_keys
    ),
    "phi3": Architecture(model_type="phi3", parts=PHI3_PARTS, more_keys=_phi3_keys),
}
