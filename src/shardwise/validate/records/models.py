"""Dimensions stated beside a measurement -> ModelConfig."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from shardwise.errors import BadFile
from shardwise.models.config import Attention, Layer, LayerGroup, Mamba, Mla, Mlp, Moe
from shardwise.models.model import ModelConfig
from shardwise.validate.records.fields import Fields

# Attention that is read, and what else a record may call it.
_ATTENTION = ("mha", "gqa", "mqa", "mla")

# Kinds of single-block layers in a hybrid model, as `layer_counts` names them.
_HYBRID = ("mamba", "attention", "moe", "mlp")
CHUNK = 128  # tokens of a scan's chunk, Megatron Core's default (MambaMixer, `chunk_size`)
LINEAR_CHUNK = 64  # of a gated delta rule: fla-org/flash-linear-attention, chunk_gated_delta_rule
LINEAR_CONV = 4  # tokens of its convolution: Qwen3-Next's config.json, linear_conv_kernel_dim

_MATRICES = {2: False, 3: True}  # matrices of a feed-forward block -> it has a gate


def config_of(model: Fields, seq: int) -> ModelConfig:
    """The architecture of a record.

    Layers of multi-token prediction are not part of it.

    Args:
        model: The record's `model` object.
        seq: Sequence length of the run, the rows of learned positions.

    Raises:
        BadInput: dimensions that are missing, or an architecture that ModelConfig cannot hold.
    """
    _refuse_unknown_attention(model)
    missing = [name for name in ("layers", "d_model", "n_heads", "vocab") if not model.states(name)]
    if missing:
        raise BadFile(f"dimensions not published: {', '.join(missing)}.")
    learned = model.flag("learned_positions")
    return ModelConfig(
        name=model.text("name", "unnamed"),
        family="published",
        d_model=model.whole("d_model"),
        vocab=model.whole("vocab"),
        groups=_hybrid(model, learned) if is_hybrid(model) else _groups(model, learned),
        tied_embeddings=model.flag("tied_embeddings"),
        n_positions=seq if learned else 0,
        max_seq=seq,
    )


def is_hybrid(model: Fields) -> bool:
    """Some layers are Mamba blocks."""
    return model.states("mamba") or bool(model.inner("layer_counts").maybe_whole("mamba", 0))


def assumed_of(model: Fields) -> dict[str, str]:
    """What of an architecture a record leaves open, and what is taken."""
    if model.states("linear_attention"):
        return {"linear_attention": "as a Mamba-2 block with the same heads, state and convolution"}
    if not is_hybrid(model) or model.inner("mamba").states("chunk"):
        return {}
    return {"mamba_chunk": f"{CHUNK}, not stated"}


def _refuse_unknown_attention(model: Fields) -> None:
    kind = model.text("attention", "gqa")
    if kind not in _ATTENTION or model.states("sparse"):
        raise BadFile(
            f'unknown attention: "{kind}" is none of {", ".join(_ATTENTION)} over all keys or a '
            "window."
        )


def _groups(model: Fields, learned: bool) -> tuple[LayerGroup, ...]:
    """Layers counted by what mixes their tokens and whether they have experts."""
    n_layers = model.whole("layers")
    if n_layers > 10_000:
        raise BadFile(f"model.layers {n_layers:,} is above 10,000.")
    local, routed = _local(model, n_layers), _routed(model, n_layers)
    linear = _linear(model.inner("linear_attention")) if model.states("linear_attention") else None
    attention = {kind: _attention(model, kind, learned) for kind in set(local)}
    ffn = {kind: _moe(model) if kind else _mlp(model) for kind in set(routed)}
    parallel = model.flag("parallel_block")
    return tuple(
        LayerGroup(
            layer=Layer(
                attention=None if is_local and linear else attention[is_local],
                mamba=linear if is_local else None,
                ffn=ffn[is_routed],
                norms="shared" if parallel else "pre",
                parallel=parallel,
            ),
            count=count,
        )
        for (is_local, is_routed), count in Counter(zip(local, routed, strict=True)).items()
    )


def _hybrid(model: Fields, learned: bool) -> tuple[LayerGroup, ...]:
    """Layers of one block each, counted by kind (Nemotron-H, arXiv 2504.03624, section 2.1)."""
    n_layers, stated = model.whole("layers"), model.inner("layer_counts")
    counts = {kind: stated.maybe_whole(kind, 0) or 0 for kind in _HYBRID}
    if sum(counts.values()) != n_layers:
        listed = ", ".join(f"{kind} {n}" for kind, n in counts.items())
        raise BadFile(
            f"layers do not add up: {listed} are {sum(counts.values()):,} blocks in "
            f"{n_layers:,} layers."
        )
    makers: dict[str, Callable[[], Layer]] = {
        "mamba": lambda: Layer(mamba=_mamba(model.inner("mamba"))),
        "attention": lambda: Layer(attention=_attention(model, False, learned)),
        "moe": lambda: Layer(ffn=_moe(model)),
        "mlp": lambda: Layer(ffn=_mlp(model)),
    }
    return tuple(LayerGroup(layer=makers[kind](), count=n) for kind, n in counts.items() if n)


def _mamba(mamba: Fields) -> Mamba:
    return Mamba(
        n_heads=mamba.whole("heads"),
        d_head=mamba.whole("head_dim"),
        d_state=mamba.whole("state"),
        n_groups=mamba.whole("groups"),
        d_conv=mamba.whole("conv"),
        chunk=mamba.maybe_whole("chunk") or CHUNK,
    )


def _linear(linear: Fields) -> Mamba:
    """A gated DeltaNet (arXiv 2412.06464) as the Mamba-2 block of the same state.

    Queries and keys stand for what reads and writes the state, values for the heads' inputs. One
    column per head of the input projection and the product of the delta rule are left out.
    """
    return Mamba(
        n_heads=linear.whole("value_heads"),
        d_head=linear.whole("value_head_dim"),
        d_state=linear.whole("key_head_dim"),
        n_groups=linear.whole("key_heads"),
        d_conv=LINEAR_CONV,
        chunk=LINEAR_CHUNK,
    )


def _local(model: Fields, n_layers: int) -> list[bool]:
    """Which layers have a window, chunk or state: all but every `full_attention_every`-th."""
    if not any(map(model.states, ("sliding_window", "attention_chunk", "linear_attention"))):
        return [False] * n_layers
    every = model.maybe_whole("full_attention_every") or n_layers + 1
    return [(i + 1) % every != 0 for i in range(n_layers)]


def _routed(model: Fields, n_layers: int) -> list[bool]:
    """Which layers have experts: those after the first dense ones, every `moe_every`-th."""
    if not model.states("experts"):
        return [False] * n_layers
    first, every = model.maybe_whole("first_dense_layers", 0) or 0, model.maybe_whole("moe_every")
    return [i >= first and (i + 1) % (every or 1) == 0 for i in range(n_layers)]


def _attention(model: Fields, local: bool, learned: bool) -> Attention:
    D, N = model.whole("d_model"), model.whole("n_heads")
    chunk, window = model.maybe_whole("attention_chunk"), model.maybe_whole("sliding_window")
    H = model.maybe_whole("head_dim") or max(1, D // N)
    mla = _mla(model.inner("mla")) if model.text("attention", "gqa") == "mla" else None
    return Attention(
        n_heads=N,
        n_kv_heads=N if mla else model.maybe_whole("n_kv_heads") or N,
        d_head=mla.d_nope + mla.d_rope if mla else H,
        window=(chunk or window) if local else None,
        chunked=local and chunk is not None,
        mla=mla,
        rope=not learned,
    )


def _mla(mla: Fields) -> Mla:
    return Mla(
        q_lora_rank=mla.maybe_whole("q_lora_rank"),
        kv_lora_rank=mla.whole("kv_lora_rank"),
        d_nope=mla.whole("qk_nope_head_dim"),
        d_rope=mla.whole("qk_rope_head_dim"),
        d_v=mla.whole("v_head_dim"),
    )


def _gated(model: Fields) -> bool:
    matrices = model.whole("mlp_matrices")
    if matrices not in _MATRICES:
        raise BadFile(f"model.mlp_matrices {matrices} is neither 2 nor 3 (with a gate).")
    return _MATRICES[matrices]


def _mlp(model: Fields) -> Mlp:
    return Mlp(d_ff=model.whole("d_ff"), gated=_gated(model))


def _moe(model: Fields) -> Moe:
    d_ff = model.whole("moe_d_ff")
    shared = model.maybe_whole("shared_experts", 0) or 0
    return Moe(
        n_experts=model.whole("experts"),
        experts_per_token=model.whole("top_k"),
        d_ff=d_ff,
        gated=_gated(model),
        d_latent=model.maybe_whole("moe_latent_size"),
        n_shared_experts=shared,
        d_ff_shared=(model.maybe_whole("shared_d_ff") or shared * d_ff) if shared else 0,
    )
