"""GPT-2, and GPT-3 and the Megatron models in its keys: learned positions, biases everywhere."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._numbers import activation
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Norm
from shardwise.models.stored import Part, Stored, turned
from shardwise.models.weights import Weight, layer_weights

MODEL_TYPES = ("gpt2",)
ARCHITECTURES = ("GPT2LMHeadModel", "GPT2Model")


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of GPT2Config."""
    D, N = keys.whole("n_embd"), keys.whole("n_head")
    attention = Attention(
        n_heads=N,
        n_kv_heads=N,
        d_head=keys.even_heads("n_head", N, "n_embd", D),
        q_bias=True,
        kv_bias=True,
        o_bias=True,
        rope=False,
        scale=None if keys.flag("scale_attn_weights", True) else 1.0,
    )
    ffn = Mlp(
        d_ff=keys.whole("n_inner", default=4 * D),
        gated=False,
        bias=True,
        activation=activation(keys, "activation_function", "gelu_new"),
    )
    layer = Layer(attention=attention, ffn=ffn, norm_bias=True)
    positions = keys.whole("n_positions", default=1024)
    return ModelConfig(
        name=name,
        family="gpt2",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layers("n_layer")),),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        n_positions=positions,
        final_norm_bias=True,
        max_seq=positions,
        norm=Norm(kind="layer", eps=keys.number("layer_norm_epsilon", default=1e-5)),
    )


OUTER = {
    "embedding": "transformer.wte.weight",
    "position": "transformer.wpe.weight",
    "final_norm": "transformer.ln_f.weight",
    "b_final_norm": "transformer.ln_f.bias",
    "unembedding": "lm_head.weight",
}

_LAYER = {
    "wo": "attn.c_proj.weight",
    "bo": "attn.c_proj.bias",
    "w_up": "mlp.c_fc.weight",
    "b_up": "mlp.c_fc.bias",
    "w_down": "mlp.c_proj.weight",
    "b_down": "mlp.c_proj.bias",
    "attention_norm": "ln_1.weight",
    "b_attention_norm": "ln_1.bias",
    "ffn_norm": "ln_2.weight",
    "b_ffn_norm": "ln_2.bias",
}


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer; matrices are [inputs, outputs], which is our order too."""
    prefix, found = "transformer.h.{layer}.", {}
    for weight in layer_weights(config, layer):
        kind = "qkv".find(weight.name[1])
        if weight.name in _LAYER:
            found[weight.name] = turned(weight, prefix + _LAYER[weight.name])
        elif kind >= 0:
            found[weight.name] = _third(weight, f"{prefix}attn.c_attn", kind)
    return found


def _third(weight: Weight, module: str, kind: int) -> Stored:
    """All queries, all keys or all values of what one matrix, or its bias, writes."""
    *inputs, N, H = weight.shape
    view, axis = (*inputs, 3, N, H), len(inputs)
    return Stored(
        tensor=f"{module}.{'weight' if weight.matmul else 'bias'}",
        held=(*inputs, 3 * N * H),
        view=view,
        part=Part(axis=axis, start=kind, stop=kind + 1),
        axes=tuple(range(len(view))),
        shape=weight.shape,
    )
