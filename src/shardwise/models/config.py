"""Configs of layers: attention, Mamba and feed-forward blocks.

A config has the widths and counts of a block, and its arithmetic (`numerics`), which changes no
count. Weights (`weights`), activations (`activations`), parameters and FLOPs (`count`) are derived
from it, so that an architecture is described once.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadShape, raise_all
from shardwise.models.checks import near_divisors, not_counts
from shardwise.models.numerics import (
    PLAIN_ROPE,
    PLAIN_ROUTING,
    ClampedGlu,
    Rope,
    Routing,
    Temperature,
)

# Places of the norms of width D in a layer: before each block, after each block, both, or one norm
# before attention and feed-forward together.
NORMS = ("pre", "post", "both", "shared")

# Norms of queries and keys: none; of each head, with one scale [H] for all heads or with a scale
# [N, H] or [K, H]; of all heads together, with a scale [N, H] or [K, H].
QK_NORMS = ("", "head", "each", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: keys and values are rebuilt from one narrow latent per token.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.

    Args:
        q_lora_rank: Width of the query latent; None if queries are projected directly.
        kv_lora_rank: Width of the key/value latent, which is cached.
        d_nope: Width of the part of a head's query and key without rotary positions.
        d_rope: Width of the part with rotary positions; its key is the same for all heads.
        d_v: Width of a head's value.
        norm_eps: Epsilon of the norms of both latents; no key of a config.json sets it.
    """

    q_lora_rank: int | None = None
    kv_lora_rank: int
    d_nope: int
    d_rope: int
    d_v: int
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        raise_all(BadShape, not_counts("mla", self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One attention block: N query heads share K key/value heads of width H.

    Args:
        n_heads: N.
        n_kv_heads: K; N for multi-head, 1 for multi-query attention.
        d_head: H, width of one query or key (d_nope + d_rope under MLA).
        window: The most keys to which a token attends: length of a sliding window or a chunk; None
            for all keys.
        chunked: Whether tokens attend only within their chunk of `window` tokens.
        causal: Whether tokens attend only to themselves and earlier tokens.
        mla: Latent attention, which replaces the key and value projections; None without.
        q_bias, kv_bias, o_bias: Whether the query, the key and value, and the output projections
            have a bias.
        clip: Bound to which queries, keys and values are clamped, before rotary positions; None
            without.
        qk_norm: Norms of queries and keys: "" none, "head" of each head with one scale [H] for all
            heads, "each" of each head with a scale for every element of all heads, "full" of all
            heads together with such a scale.
        sinks: Whether each head has a learned logit that joins the softmax but belongs to no token.
        rope: Whether rotary positions are applied.
        rotary: Constants of the rotary positions.
        alibi: Whether scores fall with distance by a slope per head, before they are scaled
            (Falcon; Press et al., arXiv 2108.12409).
        scale: Factor of the scores; None for 1 / sqrt(d_head).
        softcap: c of the soft cap c tanh(s / c) on scores s; None without.
        qk_unit: Whether queries and keys are divided by their root mean square after rotary
            positions.
        temperature: Factor of queries that grows with their position; None for 1.
    """

    n_heads: int
    n_kv_heads: int
    d_head: int
    window: int | None = None
    chunked: bool = False
    causal: bool = True
    mla: Mla | None = None
    q_bias: bool = False
    kv_bias: bool = False
    o_bias: bool = False
    clip: float | None = None
    qk_norm: str = ""
    sinks: bool = False
    rope: bool = True
    rotary: Rope = PLAIN_ROPE
    alibi: bool = False
    scale: float | None = None
    softcap: float | None = None
    qk_unit: bool = False
    temperature: Temperature | None = None

    def __post_init__(self) -> None:
        problems = not_counts("attention", self)
        if self.qk_norm not in QK_NORMS:
            problems.append(f'qk_norm "{self.qk_norm}" is not "", "head", "each" or "full".')
        if not problems and self.n_heads % self.n_kv_heads:
            problems.append(
                f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}: each "
                f"key/value head serves a whole number of query heads. "
                f"Nearest that do: {near_divisors(self.n_heads, self.n_kv_heads)}."
            )
        if self.mla and not problems and self.d_head != self.mla.d_nope + self.mla.d_rope:
            problems.append(
                f"d_head {self.d_head} is not d_nope {self.mla.d_nope} + d_rope {self.mla.d_rope}."
            )
        raise_all(BadShape, problems)

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        if self.scale is None:
            return float(self.d_head**-0.5)
        return self.scale

    @property
    def d_head_v(self) -> int:
        """Width of one value head."""
        return self.mla.d_v if self.mla else self.d_head

    def is_local(self, seq: int) -> bool:
        """Whether its window or chunks are shorter than a sequence of `seq` tokens."""
        return self.window is not None and self.window < seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """One Mamba-2 block: N heads of width H, each with a state of H x M instead of keys and values.

    Source: Dao and Gu, arXiv 2405.21060, section 7.1 (the block) and 6 (chunks).

    Args:
        n_heads: N; the inner width is N x H.
        d_head: H.
        d_state: M, width of the state: a head of width H has a state of H x M elements.
        n_groups: K, groups of heads that share the same B and C, the input and output projections
            of the state.
        d_conv: Window of the convolution before the scan, in tokens.
        chunk: Tokens per chunk; within a chunk the scan is computed like attention.
    """

    n_heads: int
    d_head: int
    d_state: int
    n_groups: int = 1
    d_conv: int = 4
    chunk: int = 256

    def __post_init__(self) -> None:
        problems = not_counts("mamba", self)
        if not problems and self.n_heads % self.n_groups:
            problems.append(
                f"n_groups {self.n_groups} does not divide n_heads {self.n_heads}: each group "
                f"serves a whole number of heads. "
                f"Nearest that do: {near_divisors(self.n_heads, self.n_groups)}."
            )
        raise_all(BadShape, problems)

    @property
    def d_inner(self) -> int:
        """Width of all heads."""
        return self.n_heads * self.d_head

    @property
    def d_scanned(self) -> int:
        """Columns that the convolution reads: the heads' inputs, B and C."""
        return self.d_inner + 2 * self.n_groups * self.d_state

    @property
    def d_projected(self) -> int:
        """Columns of the input projection: gate, convolution input, one time step per head."""
        return self.d_inner + self.d_scanned + self.n_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A dense feed-forward block of width F: two matrices, or three when gated.

    Args:
        d_ff: F.
        gated: Whether the up projection is multiplied by an activated gate projection of the same
            shape.
        bias: Whether every projection has a bias.
        activation: "silu", "gelu", "gelu_tanh", "gelu_quick", "relu" or "relu2" (squared).
    """

    d_ff: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"

    def __post_init__(self) -> None:
        raise_all(BadShape, not_counts("mlp", self))

    @property
    def up_projections(self) -> tuple[str, ...]:
        """Names of the projections from D to F."""
        return ("gate", "up") if self.gated else ("up",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """E routed experts of width F, of which each token uses k; shared experts serve every token.

    Args:
        n_experts: E, number of routed experts.
        experts_per_token: k, routed experts that each token uses.
        d_ff: F, width of one routed expert.
        gated: Whether experts have a gate projection.
        n_shared_experts: Number of experts that every token uses; 0 for none.
        d_ff_shared: Width of all shared experts together.
        d_latent: Width of a latent to which tokens are projected before they are sent to routed
            experts (LatentMoE of Nemotron 3); None if experts have inputs of width d_model.
        shared_gate: Whether a learned scalar per token scales the output of shared experts.
        router_bias: Whether the router has a bias that is a parameter.
        bias: Whether every expert projection has a bias.
        activation: As in `Mlp`.
        clamp: Clamped gated activation that replaces `activation`; None without.
        routing: How a token's experts and their weights are chosen.
    """

    n_experts: int
    experts_per_token: int
    d_ff: int
    gated: bool = True
    n_shared_experts: int = 0
    d_ff_shared: int = 0
    d_latent: int | None = None
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False
    activation: str = "silu"
    clamp: ClampedGlu | None = None
    routing: Routing = PLAIN_ROUTING

    def __post_init__(self) -> None:
        problems = not_counts("moe", self, zero_allowed=("n_shared_experts", "d_ff_shared"))
        if not problems and self.experts_per_token > self.n_experts:
            problems.append(
                f"experts_per_token {self.experts_per_token} is more than n_experts "
                f"{self.n_experts}: a token uses an expert once."
            )
        if not problems and (self.n_shared_experts > 0) != (self.d_ff_shared > 0):
            problems.append(
                f"n_shared_experts {self.n_shared_experts} and d_ff_shared {self.d_ff_shared}: "
                "both are zero or neither is."
            )
        raise_all(BadShape, problems)

    @property
    def up_projections(self) -> tuple[str, ...]:
        """Names of an expert's projections from D to F."""
        return ("gate", "up") if self.gated else ("up",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: a mixer of tokens (attention or Mamba), a feed-forward block, or both.

    Layers of one block occur in hybrid models (Nemotron-H, arXiv 2504.03624, section 2.1).

    Args:
        attention: The attention block; None without.
        mamba: The Mamba block, which replaces attention; None without.
        ffn: The feed-forward block, dense or routed; None without.
        norms: Places of the norms of width D, one of `NORMS`.
        norm_scale: Whether these norms have a scale.
        norm_bias: Whether these norms have a bias.
        parallel: Whether attention and feed-forward read the same input, and their outputs are
            added; otherwise the feed-forward block follows the attention block.
    """

    attention: Attention | None = None
    ffn: Mlp | Moe | None = None
    mamba: Mamba | None = None
    norms: str = "pre"
    norm_scale: bool = True
    norm_bias: bool = False
    parallel: bool = False

    def __post_init__(self) -> None:
        if self.norms not in NORMS:
            raise BadShape(f'norms "{self.norms}" is not one of {", ".join(NORMS)}.')
        if self.attention and self.mamba:
            raise BadShape("a layer has attention or a Mamba block, not both.")
        if not (self.has_mixer or self.ffn):
            raise BadShape("a layer without attention, Mamba block and feed-forward is empty.")
        if not self.has_both and (self.parallel or self.norms == "shared"):
            raise BadShape("a layer of one block is not parallel and shares no norm.")

    @property
    def has_mixer(self) -> bool:
        """Whether the layer has attention or a Mamba block."""
        return bool(self.attention or self.mamba)

    @property
    def has_both(self) -> bool:
        """Whether the layer has a mixer and a feed-forward block."""
        return self.has_mixer and self.ffn is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """All layers of one kind: `count` equal layers, which need not follow one another."""

    layer: Layer
    count: int

    def __post_init__(self) -> None:
        raise_all(BadShape, not_counts("layer group", self))
