"""Llama 4 (text): chunked attention with every fourth layer global, a shared and routed experts."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp, Moe
from shardwise.models.families._layers import grouped, in_order
from shardwise.models.families._names import LAYER, halves, routed, usual
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Rope, Routing, Temperature
from shardwise.models.stored import Stored, same
from shardwise.models.weights import layer_weights

MODEL_TYPES = ("llama4", "llama4_text")
ARCHITECTURES = ("Llama4ForConditionalGeneration", "Llama4ForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of Llama4TextConfig. Norms on queries and keys have no parameters here."""
    tied = keys.flag("tie_word_embeddings", False)
    text = keys.inner("text_config")
    D, n_layers = text.whole("hidden_size"), text.layers("num_hidden_layers")
    d_ff, d_ff_dense = text.whole("intermediate_size"), text.whole("intermediate_size_mlp")
    act = activation(text)
    moe = Moe(
        n_experts=text.whole("num_local_experts", default=16),
        experts_per_token=text.whole("num_experts_per_tok", default=1),
        d_ff=d_ff,
        n_shared_experts=1,
        d_ff_shared=d_ff,
        activation=act,
        routing=Routing(
            score="sigmoid",
            normalized=False,
            on_input=True,
            aux_loss=text.number("router_aux_loss_coef", default=0.001),
        ),
    )
    turned = _turned(text, n_layers)
    local = text.layer_types(n_layers, lambda i: turned[i])
    max_seq = text.whole("max_position_embeddings", default=4096 * 32)
    attentions = _attentions(text, D, max_seq)
    kinds = list(zip(local, turned, _routed(text, n_layers), strict=False))

    def layer(kind: tuple[bool, bool, bool]) -> Layer:
        is_local, has_rope, is_routed = kind
        ffn = moe if is_routed else Mlp(d_ff=d_ff_dense, activation=act)
        return Layer(attention=attentions[is_local, has_rope], ffn=ffn)

    return ModelConfig(
        name=name,
        family="llama4",
        d_model=D,
        vocab=text.whole("vocab_size"),
        groups=grouped(kinds, layer),
        order=in_order(kinds),
        tied_embeddings=tied,
        max_seq=max_seq,
        norm=rms_norm(text, 1e-5),
    )


def _turned(text: Keys, n_layers: int) -> list[bool]:
    """Which layers have rotary positions: as listed (1 has), else all but every fourth."""
    every = text.whole("no_rope_layer_interval", default=4)
    listed = text.items("no_rope_layers", int)
    if listed and len(listed) != n_layers:
        text.refuse(f"no_rope_layers names {len(listed)} layers of {n_layers}.")
        return [True] * n_layers
    return [bool(r) for r in listed] if listed else [(i + 1) % every != 0 for i in range(n_layers)]


def _routed(text: Keys, n_layers: int) -> list[bool]:
    """Which layers have experts: as listed, else every `interleave_moe_layer_step`-th."""
    step = text.whole("interleave_moe_layer_step", default=1)
    listed = text.items("moe_layers", int)
    if listed is None:
        return [(i + 1) % step == 0 for i in range(n_layers)]
    chosen = set(listed)
    return [i in chosen for i in range(n_layers)]


def _attentions(text: Keys, D: int, max_seq: int) -> dict[tuple[bool, bool], Attention]:
    """Attention by (chunked, with rotary positions)."""
    N, bias = text.whole("num_attention_heads"), text.flag("attention_bias", False)
    K, H = text.whole("num_key_value_heads", default=8), text.head_dim(D, N, 128)
    chunk = text.maybe("attention_chunk_size", 8192)
    rotary = rope(text, max_seq=max_seq, theta=500_000.0, interleaved=True)
    unit, temperature = text.flag("use_qk_norm", True), _temperature(text)
    return {
        (local, turned): Attention(
            n_heads=N,
            n_kv_heads=K,
            d_head=H,
            window=chunk if local else None,
            chunked=local and chunk is not None,
            rope=turned,
            rotary=rotary if turned else Rope(),
            qk_unit=unit and turned,
            temperature=None if turned else temperature,
            q_bias=bias,
            kv_bias=bias,
            o_bias=bias,
        )
        for local in (False, True)
        for turned in (False, True)
    }


def _temperature(text: Keys) -> Temperature | None:
    floor = text.number("floor_scale", default=8192.0)
    scale = text.number("attn_scale", default=0.1)
    told = text.flag("attn_temperature_tuning", True)
    return Temperature(floor=floor, scale=scale) if told else None


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer; experts are stacked, gates before up projections in one tensor."""
    changes = routed(layer, "feed_forward", "shared_expert")
    if changes:
        changes["router"] = "feed_forward.router.weight"
    found = usual(config, layer, changes, block="feed_forward")
    for weight in layer_weights(config, layer) if changes else ():
        tensor = f"{LAYER}feed_forward.experts"
        if weight.name in ("w_gate", "w_up"):
            found[weight.name] = halves(weight, f"{tensor}.gate_up_proj", interleaved=False)
        if weight.name == "w_down":
            found[weight.name] = same(weight, f"{tensor}.down_proj")
    return found
