"""Phi-3 mini and medium: Llama with fused projections."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import LAYER, fused, usual
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._numbers import activation, partial, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.stored import Part, Stored
from shardwise.models.weights import layer_weights

MODEL_TYPES = ("phi3",)
ARCHITECTURES = ("Phi3ForCausalLM",)

# Names under which earlier files have their scaling.
LONG = {"su": "longrope", "yarn": "longrope"}


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of Phi3Config."""
    D, N = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    keys.flag("attention_bias", False)  # published files say it; the family has no biases
    H, max_seq = keys.head_dim(D, N), keys.whole("max_position_embeddings", default=4096)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.whole("num_key_value_heads", default=N),
        d_head=H,
        window=keys.maybe("sliding_window"),
        rotary=partial(keys, rope(keys, max_seq=max_seq, kinds=LONG), H, 1.0),
    )
    ffn = Mlp(d_ff=keys.whole("intermediate_size"), activation=activation(keys))
    layer = Layer(attention=attention, ffn=ffn)
    return ModelConfig(
        name=name,
        family="phi3",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layers("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer: all queries, keys and values in one, gate and up in another."""
    found = usual(config, layer)
    attention, ffn = layer.attention, layer.ffn
    if attention is None or ffn is None:
        return found
    N, K, H, F = attention.n_heads, attention.n_kv_heads, attention.d_head, ffn.d_ff
    heads = {"wq": (0, N), "wk": (N, N + K), "wv": (N + K, N + 2 * K)}
    halves = {"w_gate": (0, F), "w_up": (F, 2 * F)}
    for weight in layer_weights(config, layer):
        for parts, module, outputs in (
            (heads, "self_attn.qkv_proj", (N + 2 * K, H)),
            (halves, "mlp.gate_up_proj", (2 * F,)),
        ):
            if weight.name in parts:
                start, stop = parts[weight.name]
                part = Part(axis=0, start=start, stop=stop)
                found[weight.name] = fused(weight, LAYER + module, outputs, part)
    return found
