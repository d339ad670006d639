"""What an architecture is: layers of attention, Mamba and feed-forward, and what is around them.

A config holds widths and counts, and what is computed with them (`numerics`), on which no count
depends. Weights (`weights`), activations (`activations`) and every number (`count`) are derived
from it, so an architecture is described once.
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

# Norms of width D in a layer: before each block, after each block, both, or one that attention
# and feed-forward share.
NORMS = ("pre", "post", "both", "shared")

QK_NORMS = ("", "head", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: keys and values are rebuilt from one narrow latent per token.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.

    Args:
        q_lora_rank: Width of the query latent, or None where queries are projected directly.
        kv_lora_rank: Width of the latent that the cache holds.
        d_nope: Width per head of the part of queries and keys without position.
        d_rope: Width of the part with position; its key is shared by all heads.
        d_v: Width per head of the values.
        norm_eps: Of the norms of both latents, which follow no key of a config.json.
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
        n_kv_heads: K; N for multi-head, 1 for multi-query.
        d_head: H, width of one query or key (d_nope + d_rope under MLA).
        window: Keys a token sees at most (sliding window, or length of a chunk); None for all.
        chunked: The window is a chunk: tokens see their own chunk only.
        causal: Tokens see earlier tokens only.
        mla: Latent attention, which replaces the key and value projections.
        q_bias, kv_bias, o_bias: Projections that carry a bias.
        qk_norm: "" none, "head" one scale of width H, "full" one over all heads.
        sinks: One learned logit per head that takes attention from no token.
        rope: Rotary positions are applied.
        rotary: Their numbers.
        alibi: Scores fall with distance by a slope per head, before they are scaled (Falcon;
            Press et al., arXiv 2108.12409).
        scale: Scores are multiplied with it; None for 1 / sqrt(d_head).
        softcap: Scores s become c tanh(s / c) with this c.
        qk_unit: After rotary positions queries and keys are divided by their root mean square.
        temperature: Queries are multiplied with a number that grows with their position.
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
            problems.append(f'qk_norm "{self.qk_norm}" is none of "", "head", "full".')
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
        """What scores are multiplied with."""
        return float(self.d_head**-0.5) if self.scale is None else self.scale

    @property
    def d_head_v(self) -> int:
        """Width of one value head."""
        return self.mla.d_v if self.mla else self.d_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """One Mamba-2 block: N heads of width H, each with a state of H x M instead of keys and values.

    Source: Dao and Gu, arXiv 2405.21060, section 7.1 (the block) and 6 (chunks).

    Args:
        n_heads: N; the inner width is N x H.
        d_head: H.
        d_state: M, numbers of state per number of a head.
        n_groups: K, groups of heads that share what writes and reads the state (B and C).
        d_conv: Tokens that the convolution before the scan sees.
        chunk: Tokens whose products are computed as attention; states pass between chunks.
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
        """Columns that the convolution sees: the heads' inputs, B and C."""
        return self.d_inner + 2 * self.n_groups * self.d_state

    @property
    def d_projected(self) -> int:
        """Columns of the input projection: a gate, what is convolved, one time step per head."""
        return self.d_inner + self.d_scanned + self.n_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A dense feed-forward block of width F: two matrices, or three when gated.

    Args:
        d_ff: F.
        gated: The up projection is multiplied by an activated gate of the same shape.
        bias: Every projection carries a bias.
        activation: "silu", "gelu", "gelu_tanh", "gelu_quick", "relu" or "relu2" (squared).
    """

    d_ff: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"

    def __post_init__(self) -> None:
        raise_all(BadShape, not_counts("mlp", self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """E routed experts of width F, of which each token uses k; shared experts serve every token.

    Args:
        n_experts: E, routed experts stored.
        experts_per_token: k, routed experts a token uses.
        d_ff: F, width of one routed expert.
        gated: Experts have a gate.
        n_shared_experts: Experts that every token uses (0: none).
        d_ff_shared: Width of all shared experts together.
        d_latent: Width that routed experts read and write, where tokens are projected to it before
            they are sent and back after (Nemotron 3's LatentMoE); None for the model's.
        shared_gate: A learned scalar per token scales the shared experts.
        router_bias: The router has a bias that is a parameter.
        bias: Every expert projection carries a bias.
        activation: As of `Mlp`.
        clamp: What a gate computes instead, where it is clamped.
        routing: How tokens choose experts.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: a mixer of tokens (attention or Mamba), a feed-forward block, or both.

    Hybrid models alternate layers of one block (Nemotron-H, arXiv 2504.03624, section 2.1).

    Args:
        attention: The attention block, if it has one.
        mamba: The Mamba block that stands in the place of attention, if it has one.
        ffn: The feed-forward block, dense or routed, if it has one.
        norms: Where norms of width D stand: "pre", "post", "both" or "shared" (one for both).
        norm_bias: Norms carry a bias beside their scale.
        parallel: Attention and feed-forward read the same input and their outputs are added.
    """

    attention: Attention | None = None
    ffn: Mlp | Moe | None = None
    mamba: Mamba | None = None
    norms: str = "pre"
    norm_bias: bool = False
    parallel: bool = False

    def __post_init__(self) -> None:
        if self.norms not in NORMS:
            raise BadShape(f'norms "{self.norms}" is none of {", ".join(NORMS)}.')
        if self.attention and self.mamba:
            raise BadShape("a layer has attention or a Mamba block, not both.")
        if not (self.has_mixer or self.ffn):
            raise BadShape("a layer without attention, Mamba block and feed-forward is empty.")
        if not self.has_both and (self.parallel or self.norms == "shared"):
            raise BadShape("a layer of one block is not parallel and shares no norm.")

    @property
    def has_mixer(self) -> bool:
        """It has attention or a Mamba block."""
        return bool(self.attention or self.mamba)

    @property
    def has_both(self) -> bool:
        """It has a mixer and a feed-forward block."""
        return self.has_mixer and self.ffn is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """`count` equal layers, wherever in the stack they stand."""

    layer: Layer
    count: int

    def __post_init__(self) -> None:
        raise_all(BadShape, not_counts("layer group", self))
