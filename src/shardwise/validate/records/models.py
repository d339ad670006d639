"""Conversion of the `model` object of a record, which has dimensions, to a ModelConfig."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from shardwise.errors import BadFile
from shardwise.models.config import Attention, Layer, LayerGroup, Mamba, Mla, Mlp, Moe
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Routing
from shardwise.validate.records.fields import JsonReader

# Supported kinds of attention.
_ATTENTION = ("mha", "gqa", "mqa", "mla")

# Kinds of layers in a hybrid model, each of one block; keys of `layer_counts` in a record.
_HYBRID = ("mamba", "attention", "moe", "mlp")
# Tokens per chunk of a Mamba-2 scan: Megatron Core's default (MambaMixer, `chunk_size`).
CHUNK = 128
# Tokens per chunk of a gated delta rule: fla-org/flash-linear-attention, chunk_gated_delta_rule.
LINEAR_CHUNK = 64
# Tokens of the convolution before it: Qwen3-Next's config.json, linear_conv_kernel_dim.
LINEAR_CONV = 4

_GATE_BY_MATRICES = {2: False, 3: True}  # number of matrices of an MLP -> whether it has a gate


def config_of(model: JsonReader, seq: int) -> ModelConfig:
    """Return the architecture of a record, without layers of multi-token prediction.

    Args:
        seq: Sequence length of the run, which is also the number of learned positions, if any.

    Raises:
        BadFile: dimensions are missing, or the kind of attention is unknown.
        BadInput: ModelConfig does not support the architecture.
    """
    _refuse_unknown_attention(model)
    missing = [name for name in ("layers", "d_model", "n_heads", "vocab") if not model.has(name)]
    if missing:
        raise BadFile(f"dimensions not published: {', '.join(missing)}.")
    learned = model.flag("learned_positions")
    return ModelConfig(
        name=model.text("name", "unnamed"),
        family="published",
        d_model=model.integer("d_model"),
        vocab=model.integer("vocab"),
        groups=_hybrid_groups(model, learned)
        if is_hybrid(model)
        else _layer_groups(model, learned),
        tied_embeddings=model.flag("tied_embeddings"),
        n_positions=seq if learned else 0,
        max_seq=seq,
    )


def is_hybrid(model: JsonReader) -> bool:
    """Whether the model has Mamba layers among others."""
    return model.has("mamba") or bool(model.section("layer_counts").optional_integer("mamba", 0))


def model_assumptions(model: JsonReader) -> dict[str, str]:
    """Return the assumptions of `config_of`: item that the record leaves open -> assumption."""
    if model.has("linear_attention"):
        return {"linear_attention": "as a Mamba-2 block with the same heads, state and convolution"}
    if not is_hybrid(model) or model.section("mamba").has("chunk"):
        return {}
    return {"mamba_chunk": f"{CHUNK}, not stated"}


def _refuse_unknown_attention(model: JsonReader) -> None:
    kind = model.text("attention", "gqa")
    if kind not in _ATTENTION or model.has("sparse"):
        raise BadFile(
            f'unknown attention: "{kind}" is none of {", ".join(_ATTENTION)} over all keys or a '
            "window."
        )


def _layer_groups(model: JsonReader, learned: bool) -> tuple[LayerGroup, ...]:
    """Return the layers in groups that have the same kind of attention and of MLP."""
    n_layers = model.integer("layers")
    if n_layers > 10_000:
        raise BadFile(f"model.layers {n_layers:,} is above 10,000.")
    local = _local_layers(model, n_layers)
    routed = _expert_layers(model, n_layers)
    linear = (
        _linear_attention(model.section("linear_attention"))
        if model.has("linear_attention")
        else None
    )
    parallel = model.flag("parallel_block")
    groups = []
    for (is_local, is_routed), count in Counter(zip(local, routed, strict=True)).items():
        mamba = linear if is_local else None
        layer = Layer(
            attention=None if mamba else _attention(model, is_local, learned),
            mamba=mamba,
            ffn=_moe(model) if is_routed else _mlp(model),
            norms="shared" if parallel else "pre",
            parallel=parallel,
        )
        groups.append(LayerGroup(layer=layer, count=count))
    return tuple(groups)


def _hybrid_groups(model: JsonReader, learned: bool) -> tuple[LayerGroup, ...]:
    """Return the layers of a hybrid model (Nemotron-H, arXiv 2504.03624, section 2.1).

    Each layer is a single block: Mamba, attention, experts or MLP.
    """
    n_layers = model.integer("layers")
    layer_counts = model.section("layer_counts")
    counts = {kind: layer_counts.optional_integer(kind, 0) or 0 for kind in _HYBRID}
    if sum(counts.values()) != n_layers:
        listed = ", ".join(f"{kind} {n}" for kind, n in counts.items())
        raise BadFile(
            f"layers do not add up: {listed} are {sum(counts.values()):,} blocks in "
            f"{n_layers:,} layers."
        )
    makers: dict[str, Callable[[], Layer]] = {
        "mamba": lambda: Layer(mamba=_mamba(model.section("mamba"))),
        "attention": lambda: Layer(attention=_attention(model, False, learned)),
        "moe": lambda: Layer(ffn=_moe(model)),
        "mlp": lambda: Layer(ffn=_mlp(model)),
    }
    return tuple(LayerGroup(layer=makers[kind](), count=n) for kind, n in counts.items() if n)


def _mamba(mamba: JsonReader) -> Mamba:
    return Mamba(
        n_heads=mamba.integer("heads"),
        d_head=mamba.integer("head_dim"),
        d_state=mamba.integer("state"),
        n_groups=mamba.integer("groups"),
        d_conv=mamba.integer("conv"),
        chunk=mamba.optional_integer("chunk") or CHUNK,
    )


def _linear_attention(linear: JsonReader) -> Mamba:
    """Return a Mamba-2 block with the same state as a Gated DeltaNet (arXiv 2412.06464).

    Queries correspond to C of Mamba-2, keys to B, values to the inputs of the heads. The
    approximation omits one column per head of the input projection, and the extra matmul of the
    delta rule.
    """
    return Mamba(
        n_heads=linear.integer("value_heads"),
        d_head=linear.integer("value_head_dim"),
        d_state=linear.integer("key_head_dim"),
        n_groups=linear.integer("key_heads"),
        d_conv=LINEAR_CONV,
        chunk=LINEAR_CHUNK,
    )


def _local_layers(model: JsonReader, n_layers: int) -> list[bool]:
    """For each layer, whether it has local or linear attention instead of full attention.

    Every `full_attention_every`-th layer has full attention.
    """
    if not any(map(model.has, ("sliding_window", "attention_chunk", "linear_attention"))):
        return [False] * n_layers
    period = model.optional_integer("full_attention_every") or n_layers + 1
    return [number % period != 0 for number in range(1, n_layers + 1)]


def _expert_layers(model: JsonReader, n_layers: int) -> list[bool]:
    """For each layer, whether it has experts.

    After `first_dense_layers` layers without experts, every `moe_every`-th layer has them.
    """
    if not model.has("experts"):
        return [False] * n_layers
    n_dense = model.optional_integer("first_dense_layers", 0) or 0
    period = model.optional_integer("moe_every") or 1
    return [number > n_dense and number % period == 0 for number in range(1, n_layers + 1)]


def _attention(model: JsonReader, local: bool, learned: bool) -> Attention:
    D = model.integer("d_model")
    N = model.integer("n_heads")
    K = model.optional_integer("n_kv_heads") or N
    H = model.optional_integer("head_dim") or max(1, D // N)
    mla = None
    if model.text("attention", "gqa") == "mla":
        mla = _mla(model.section("mla"))
        K = N
        H = mla.d_nope + mla.d_rope
    chunk = model.optional_integer("attention_chunk")
    window = chunk or model.optional_integer("sliding_window")
    return Attention(
        n_heads=N,
        n_kv_heads=K,
        d_head=H,
        window=window if local else None,
        chunked=local and chunk is not None,
        mla=mla,
        rope=not learned,
    )


def _mla(mla: JsonReader) -> Mla:
    return Mla(
        q_lora_rank=mla.optional_integer("q_lora_rank"),
        kv_lora_rank=mla.integer("kv_lora_rank"),
        d_nope=mla.integer("qk_nope_head_dim"),
        d_rope=mla.integer("qk_rope_head_dim"),
        d_v=mla.integer("v_head_dim"),
    )


def _has_gate(model: JsonReader) -> bool:
    matrices = model.integer("mlp_matrices")
    if matrices not in _GATE_BY_MATRICES:
        raise BadFile(f"model.mlp_matrices {matrices} is neither 2 nor 3 (with a gate).")
    return _GATE_BY_MATRICES[matrices]


def _mlp(model: JsonReader) -> Mlp:
    return Mlp(d_ff=model.integer("d_ff"), gated=_has_gate(model))


def _moe(model: JsonReader) -> Moe:
    d_ff = model.integer("moe_d_ff")
    n_shared = model.optional_integer("shared_experts", 0) or 0
    d_ff_shared = model.optional_integer("shared_d_ff") or n_shared * d_ff
    return Moe(
        n_experts=model.integer("experts"),
        experts_per_token=model.integer("top_k"),
        d_ff=d_ff,
        gated=_has_gate(model),
        d_latent=model.optional_integer("moe_latent_size"),
        n_shared_experts=n_shared,
        d_ff_shared=d_ff_shared if n_shared else 0,
        routing=Routing(
            n_groups=model.optional_integer("expert_groups") or 1,
            top_groups=model.optional_integer("top_expert_groups") or 1,
            correction=model.flag("routing_correction"),
        ),
    )
