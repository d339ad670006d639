"""GPT-2, and with the same keys GPT-3 and Megatron models: learned positions, biases everywhere."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._numbers import activation
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Norm
from shardwise.models.tensor_layout import AxisSlice, TensorLayout, conv1d_layout
from shardwise.models.weights import Weight, layer_weights

MODEL_TYPES = ("gpt2",)
ARCHITECTURES = ("GPT2LMHeadModel", "GPT2Model")


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of GPT2Config."""
    D = keys.integer("n_embd")
    N = keys.integer("n_head")
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
        d_ff=keys.integer("n_inner", default=4 * D),
        gated=False,
        bias=True,
        activation=activation(keys, "activation_function", "gelu_new"),
    )
    layer = Layer(attention=attention, ffn=ffn, norm_bias=True)
    n_positions = keys.integer("n_positions", default=1024)
    return ModelConfig(
        name=name,
        family="gpt2",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("n_layer")),),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        n_positions=n_positions,
        final_norm_bias=True,
        max_seq=n_positions,
        norm=Norm(kind="layer", eps=keys.number("layer_norm_epsilon", default=1e-5)),
    )


OUTER_NAMES = {
    "embedding": "transformer.wte.weight",
    "position": "transformer.wpe.weight",
    "final_norm": "transformer.ln_f.weight",
    "b_final_norm": "transformer.ln_f.bias",
    "unembedding": "lm_head.weight",
}

_LAYER_NAMES = {
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


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; matrices are [inputs, outputs], c_attn fuses wq, wk and wv."""
    prefix = "transformer.h.{layer}."
    layouts = {}
    for weight in layer_weights(config, layer):
        if weight.name in _LAYER_NAMES:
            layouts[weight.name] = conv1d_layout(weight, prefix + _LAYER_NAMES[weight.name])
        elif weight.name[1] in "qkv":
            layouts[weight.name] = _fused_qkv(weight, f"{prefix}attn.c_attn")
    return layouts


def _fused_qkv(weight: Weight, module: str) -> TensorLayout:
    """Layout of the query, key or value projection, or its bias, in a matrix that fuses them."""
    *inputs, N, H = weight.shape
    view = (*inputs, 3, N, H)
    third = "qkv".index(weight.name[1])
    return TensorLayout(
        tensor_name=f"{module}.{'weight' if weight.is_matmul else 'bias'}",
        file_shape=(*inputs, 3 * N * H),
        view_shape=view,
        axis_slice=AxisSlice(axis=len(inputs), start=third, stop=third + 1),
        axes=tuple(range(len(view))),
        shape=weight.shape,
    )
