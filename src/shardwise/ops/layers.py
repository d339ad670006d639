"""The matmuls of a Transformer as einsums over named dims. Book §4.

Each `Term` is one matmul of the forward pass, without shardings; its gradients and collectives are
derived in `program`. Dims have the letters of `models.weights`. Arrays: x is the input of a block,
y its output; q, k, v, s, o are queries, keys, values, scores and output of attention; h is the
hidden activation of an MLP. The scan of a Mamba block is written as attention in Z chunks of Tc
queries and Sc keys: its C, B and inputs are called q, k and v, and M is the width of its state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from shardwise.arrays import Num, ceil_div, minimum
from shardwise.models import Attention, Layer, Mamba, Mlp, ModelConfig, Moe
from shardwise.models.count import mean_visible
from shardwise.ops.einsum import Array, Dim, Einsum
from shardwise.ops.notation import read_einsum

# Arrays between blocks (and latents), which sequence parallelism shards over `tensor` too.
RESIDUAL = frozenset({"x", "y", "cq", "ckv", "cx", "cy"})
# Arrays that are never in HBM: attention scores (flash attention), the one-hot of a lookup.
ON_CHIP = frozenset({"s", "onehot"})
MOE_CHOSEN = ("E",)  # `Einsum.chosen` of routed experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One matmul of the forward pass.

    Args:
        module: `attn`, `mamba`, `mlp`, `moe`, `shared`; `embed` or `unembed` outside the layers.
        product: the matmul's name within its module, as `up`; "" if the module has only one.
        block: name that terms share if they use the same gathered input, whose gradient is
            reduced once; "core" for the attention core, which has no weights.
        einsum: the matmul, without shardings.
        sizes: dim -> size, for the dims that are not the same in all layers.
        share: share of the full matmul that is computed; about half under a causal mask.
    """

    module: str
    product: str = ""
    block: str
    einsum: Einsum
    sizes: Mapping[str, Num] = field(default_factory=dict)
    share: Num = 1.0

    @property
    def name(self) -> str:
        """Module and product: `mlp.up`."""
        if not self.product:
            return self.module
        return f"{self.module}.{self.product}"


def layer_terms(config: ModelConfig, layer: Layer, seq: Num) -> tuple[Term, ...]:
    """The matmuls of one layer in the order of the forward pass, for sequences of `seq` tokens."""
    ffn_block = "mlp"
    if layer.parallel:
        ffn_block = "attn"
    terms: list[Term] = []
    if layer.attention:
        terms += _attention(config, layer.attention, seq)
    if layer.mamba:
        terms += _mamba(layer.mamba, seq)
    if isinstance(layer.ffn, Moe):
        terms += _moe(layer.ffn, ffn_block)
    elif layer.ffn:
        terms += _gated(layer.ffn.gated, "mlp", ffn_block, "w_", {"F": layer.ffn.d_ff})
    return tuple(terms)


def collective_matmul_blocks(layer: Layer) -> tuple[str, ...]:
    """Names of the blocks that can use collective matmuls: `attn`, `mlp`, both or none.

    Blocks that share their input (parallel layers), experts and latent attention cannot.
    """
    if layer.parallel:
        return ()
    blocks = []
    if layer.attention is not None and not layer.attention.mla:
        blocks.append("attn")
    if isinstance(layer.ffn, Mlp):
        blocks.append("mlp")
    return tuple(blocks)


def outer_terms(config: ModelConfig) -> tuple[Term, ...]:
    """The matmuls outside the layers: embedding and unembedding.

    The embedding lookup is written as a product with one-hot vectors, without FLOPs: it has the
    same shardings and collectives.
    """
    lookup = Term(
        module="embed",
        block="embed",
        einsum=_einsum("onehot[B,T,V] . embedding[V,D] -> y[B,T,D]"),
        share=0.0,
    )
    weight = "unembedding[D,V]"
    if config.tied_embeddings:
        weight = "embedding[V,D]"
    head = Term(
        module="unembed", block="unembed", einsum=_einsum(f"x[B,T,D] . {weight} -> logits[B,T,V]")
    )
    return (lookup, head)


def _einsum(text: str, chosen: tuple[str, ...] = ()) -> Einsum:
    return replace(read_einsum(text), chosen=chosen)


def _attention(config: ModelConfig, attention: Attention, seq: Num) -> Iterator[Term]:
    sizes = {"N": attention.n_heads, "K": attention.n_kv_heads, "H": attention.d_head}
    value = "H"
    if attention.mla:
        mla = attention.mla
        sizes |= {"Q": mla.q_lora_rank or 0, "C": mla.kv_lora_rank + mla.d_rope}
        sizes |= {"C'": mla.kv_lora_rank, "Hn": mla.d_nope, "Hv": mla.d_v}
        value = "Hv"
        lines = list(_mla_lines(mla.q_lora_rank))
    else:
        lines = [
            ("q", "x[B,T,D] . wq[D,N,H] -> q[B,T,N,H]"),
            ("k", "x[B,T,D] . wk[D,K,H] -> k[B,T,K,H]"),
            ("v", "x[B,T,D] . wv[D,K,H] -> v[B,T,K,H]"),
        ]
    for name, text in lines:
        yield Term(module="attn", product=name, block="attn", einsum=_einsum(text), sizes=sizes)
    share = mean_visible(attention, seq) / seq
    yield from _scores(sizes, share, value, grouped=attention.mla is None)
    out = f"o[B,T,N,{value}] . wo[N,{value},D] -> y[B,T,D]"
    yield Term(module="attn", product="out", block="attn", einsum=_einsum(out), sizes=sizes)


def _mla_lines(q_lora_rank: int | None) -> Iterator[tuple[str, str]]:
    if q_lora_rank:
        yield "q_down", "x[B,T,D] . w_dq[D,Q] -> cq[B,T,Q]"
        yield "q_up", "cq[B,T,Q] . w_uq[Q,N,H] -> q[B,T,N,H]"
    else:
        yield "q", "x[B,T,D] . wq[D,N,H] -> q[B,T,N,H]"
    yield "kv_down", "x[B,T,D] . w_dkv[D,C] -> ckv[B,T,C]"
    yield "k_up", "ckv[B,T,C'] . w_uk[C',N,Hn] -> k[B,T,N,Hn]"
    yield "v_up", "ckv[B,T,C'] . w_uv[C',N,Hv] -> v[B,T,N,Hv]"


def _scores(sizes: Mapping[str, Num], share: Num, value: str, *, grouped: bool) -> Iterator[Term]:
    """The attention core: queries times keys, scores times values, for each of N heads.

    If `grouped`, keys and values have only K heads in memory. `value` is the dim of a value head.
    """
    stored = ""
    if grouped:
        stored = "K"
    keys = Array("k", (Dim("B"), Dim("S"), Dim("N", (), stored), Dim("H")))
    values = Array("v", (Dim("B"), Dim("S"), Dim("N", (), stored), Dim(value)))
    q = Array("q", tuple(map(Dim, ("B", "T", "N", "H"))))
    s = Array("s", tuple(map(Dim, ("B", "N", "T", "S"))))
    o = Array("o", tuple(map(Dim, ("B", "T", "N", value))))
    for name, einsum in (("scores", Einsum(q, keys, s)), ("values", Einsum(s, values, o))):
        yield Term(
            module="attn", product=name, block="core", einsum=einsum, sizes=sizes, share=share
        )


def _mamba(mamba: Mamba, seq: Num) -> Iterator[Term]:
    """Projections and the four matmuls of the scan (arXiv 2405.21060, section 6, listing 1).

    N heads share the B and C of K groups, as query heads share key heads. Chunks depend on each
    other only through their states, which `estimate.training.extra_traffic` sends between chips.
    """
    chunk = minimum(mamba.chunk, seq)
    sizes = {"N": mamba.n_heads, "K": mamba.n_groups, "H": mamba.d_head, "M": mamba.d_state}
    sizes |= {"Z": ceil_div(seq, chunk), "Tc": chunk, "Sc": chunk, "F": mamba.d_projected}
    into = "x[B,T,D] . w_in[D,F] -> p[B,T,F]"
    out = "o[B,T,N,H] . w_out[N,H,D] -> y[B,T,D]"
    yield Term(module="mamba", product="in", block="mamba", einsum=_einsum(into), sizes=sizes)
    heads = Dim("N", (), "K")
    q, k = (Array(name, (*map(Dim, ("B", "Z", "Tc")), heads, Dim("M"))) for name in ("q", "k"))
    scores = read_einsum("q[B,Z,Tc,K,M] . k[B,Z,Sc,K,M] -> s[B,Z,K,Tc,Sc]")
    values = read_einsum("s[B,Z,N,Tc,Sc] . v[B,Z,Sc,N,H] -> o[B,Z,Tc,N,H]")
    v, o = (Array(name, tuple(map(Dim, ("B", "Z", "Tc", "N", "H")))) for name in ("v", "o"))
    state = Array("state", tuple(map(Dim, ("B", "Z", "N", "M", "H"))))
    core = {
        "scores": (scores, 0.5),  # the mask is causal within a chunk: half of the scores
        "values": (values, 0.5),
        "states": (Einsum(k, v, state), 1.0),
        "read": (Einsum(q, state, o), 1.0),
    }
    for name, (einsum, share) in core.items():
        yield Term(
            module="mamba", product=name, block="core", einsum=einsum, sizes=sizes, share=share
        )
    yield Term(module="mamba", product="out", block="mamba", einsum=_einsum(out), sizes=sizes)


def _gated(
    gated: bool, module: str, block: str, prefix: str, sizes: Mapping[str, Num]
) -> Iterator[Term]:
    """The gate (if any), up and down projections of a dense block."""
    for part in _input_products(gated):
        text = f"x[B,T,D] . {prefix}{part}[D,F] -> {part}[B,T,F]"
        yield Term(module=module, product=part, block=block, einsum=_einsum(text), sizes=sizes)
    down = f"h[B,T,F] . {prefix}down[F,D] -> y[B,T,D]"
    yield Term(module=module, product="down", block=block, einsum=_einsum(down), sizes=sizes)


def _input_products(gated: bool) -> tuple[str, ...]:
    """Names of the projections that read the input of an MLP."""
    if gated:
        return ("gate", "up")
    return ("up",)


def _moe(moe: Moe, block: str) -> Iterator[Term]:
    """The router, the R routed experts of each token, and the shared experts."""
    sizes = {"E": moe.n_experts, "R": moe.experts_per_token, "F": moe.d_ff}
    x = "x"
    y = "y"
    width = "D"
    if moe.d_latent:
        x = "cx"
        y = "cy"
        width = "C"
        sizes["C"] = moe.d_latent
    router = _einsum("x[B,T,D] . router[D,E] -> gates[B,T,E]")
    yield Term(module="moe", product="router", block=block, einsum=router, sizes=sizes)
    if moe.d_latent:
        narrow = _einsum("x[B,T,D] . latent_down[D,C] -> cx[B,T,C]")
        yield Term(module="moe", product="latent_down", block=block, einsum=narrow, sizes=sizes)
    for part in _input_products(moe.gated):
        text = f"{x}[B,T,{width}] . w_{part}[E,{width},F] -> {part}[B,T,R,F]"
        einsum = _einsum(text, MOE_CHOSEN)
        yield Term(module="moe", product=part, block=block, einsum=einsum, sizes=sizes)
    down = _einsum(f"h[B,T,R,F] . w_down[E,F,{width}] -> {y}[B,T,{width}]", MOE_CHOSEN)
    yield Term(module="moe", product="down", block=block, einsum=down, sizes=sizes)
    if moe.d_latent:
        wide = _einsum("cy[B,T,C] . latent_up[C,D] -> y[B,T,D]")
        yield Term(module="moe", product="latent_up", block=block, einsum=wide, sizes=sizes)
    if moe.shared_gate:
        scale = _einsum("x[B,T,D] . shared_scale[D] -> scale[B,T]")
        yield Term(module="moe", product="shared_scale", block=block, einsum=scale, sizes=sizes)
    if moe.d_ff_shared:
        yield from _gated(moe.gated, "shared", block, "shared_", {"F": moe.d_ff_shared})
