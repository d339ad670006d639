"""ModelConfig: a whole model as groups of equal layers between its embeddings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import TypeVar

from shardwise.errors import BadShape, raise_all
from shardwise.models.checks import not_counts
from shardwise.models.config import Attention, Layer, LayerGroup, Mamba, Mlp, Moe
from shardwise.models.numerics import PLAIN_NORM, Norm
from shardwise.models.stack import Segment, one_after_another

Block = TypeVar("Block", bound=Attention | Mamba | Mlp | Moe)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The architecture of a Transformer, as numbers.

    Args:
        name: Name of the preset, or of the folder or file from which it was read.
        family: Model family, as a model type of config.json; "dense" for a model built by hand.
        d_model: D.
        vocab: V, rows of the embedding.
        groups: The distinct kinds of layers, each with its number of layers.
        order: Order of the layers (`stack`); () if all layers of a group precede the next group.
        tied_embeddings: Whether the unembedding is the embedding transposed.
        n_positions: Rows of a learned position embedding; 0 without one.
        final_norm: Whether a norm of width D follows the last layer.
        final_norm_scale: Whether the final norm has a scale.
        final_norm_bias: Whether the final norm has a bias.
        unembedding_bias: Whether the unembedding has a bias.
        max_seq: Longest sequence that the authors state, in tokens; None if they do not.
        norm: Kind and constants of the norms.
        scaled_embeddings: Whether embeddings are multiplied by the square root of D.
        embedding_scale: Factor of the embeddings.
        residual_scale: Factor of the output of a block before it is added to the residual.
        logit_scale: Factor of the logits.
        logit_softcap: c of the soft cap c tanh(z / c) on logits z; None without.
        checkpoint_dtype: Dtype of most weights as published, from `quantization_config`.
        unused_keys: Keys of the config.json that were not read: unknown ones, and those of what is
            not counted.
        ignored_keys: Keys of the config.json that were not read, since they change no count.
        source: Where the config was published, or its path.
    """

    name: str
    family: str = "dense"
    d_model: int
    vocab: int
    groups: tuple[LayerGroup, ...]
    order: tuple[Segment, ...] = ()
    tied_embeddings: bool = False
    n_positions: int = 0
    final_norm: bool = True
    final_norm_scale: bool = True
    final_norm_bias: bool = False
    unembedding_bias: bool = False
    max_seq: int | None = None
    norm: Norm = PLAIN_NORM
    scaled_embeddings: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    checkpoint_dtype: str = "bf16"
    unused_keys: tuple[str, ...] = ()
    ignored_keys: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        problems = not_counts(self.name or "model", self, zero_allowed=("n_positions",))
        if not self.groups:
            problems.append(f"{self.name} has no layers.")
        problems += self._order_problems()
        raise_all(BadShape, problems)

    def _order_problems(self) -> list[str]:
        """A problem if `order` has other numbers of layers per group than `groups`."""
        order_counts: Counter[int] = Counter()
        for segment in self.order:  # not unrolled: a repeat may be a mistyped, huge number
            for kind in segment.kinds:
                order_counts[kind] += segment.repeats
        if not self.order or order_counts == {i: g.count for i, g in enumerate(self.groups)}:
            return []
        counts = ", ".join(str(group.count) for group in self.groups)
        return [
            f"the order of {self.name} does not match the layer counts of its groups, {counts}."
        ]

    @classmethod
    def dense(
        cls,
        *,
        name: str = "dense",
        n_layers: int,
        d_model: int,
        d_ff: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        vocab: int,
        tied_embeddings: bool = False,
        gated: bool = True,
        window: int | None = None,
        norms: str = "pre",
        max_seq: int | None = None,
    ) -> ModelConfig:
        """Build a dense model of equal layers without biases.

        Args:
            name: Name of the model.
            n_layers: L.
            d_model: D.
            d_ff: F.
            n_heads: N.
            n_kv_heads: K; by default N.
            d_head: H; by default D / N.
            vocab: V.
            tied_embeddings: Whether the unembedding is the embedding transposed.
            gated: Whether the MLP has three matrices instead of two.
            window: The most keys to which a token attends; None for all.
            norms: Places of the norms: "pre", "post", "both" or "shared".
            max_seq: Longest sequence, in tokens.

        Raises:
            BadShape: A number is below 1, or n_heads does not divide d_model.

        >>> ModelConfig.dense(n_layers=2, d_model=64, d_ff=256, n_heads=4, vocab=1000).d_head
        16
        """
        if d_head is None:
            if n_heads < 1 or d_model % n_heads:
                raise BadShape(
                    f"n_heads {n_heads} does not divide d_model {d_model}, and d_head is not given."
                )
            d_head = d_model // n_heads
        if n_kv_heads is None:
            n_kv_heads = n_heads
        attention = Attention(
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            d_head=d_head,
            window=window,
        )
        ffn = Mlp(d_ff=d_ff, gated=gated, activation="silu" if gated else "gelu")
        layer = Layer(attention=attention, ffn=ffn, norms=norms)
        return cls(
            name=name,
            d_model=d_model,
            vocab=vocab,
            groups=(LayerGroup(layer=layer, count=n_layers),),
            tied_embeddings=tied_embeddings,
            max_seq=max_seq,
        )

    @property
    def main_layer(self) -> Layer:
        """The most common kind of layer; the first of those that are equally common."""
        return max(self.groups, key=attrgetter("count")).layer

    @cached_property
    def attentions(self) -> tuple[tuple[Attention, int], ...]:
        """The attention of each layer group that has one, with its number of layers."""
        return self._blocks(lambda layer: layer.attention)

    @cached_property
    def mambas(self) -> tuple[tuple[Mamba, int], ...]:
        """The Mamba block of each layer group that has one, with its number of layers."""
        return self._blocks(lambda layer: layer.mamba)

    @cached_property
    def ffns(self) -> tuple[tuple[Mlp | Moe, int], ...]:
        """The feed-forward block of each layer group that has one, with its number of layers."""
        return self._blocks(lambda layer: layer.ffn)

    @cached_property
    def moes(self) -> tuple[tuple[Moe, int], ...]:
        """The routed feed-forward block of each layer group that has one, with its layers."""
        return self._blocks(lambda layer: layer.ffn if isinstance(layer.ffn, Moe) else None)

    def _blocks(self, block_of: Callable[[Layer], Block | None]) -> tuple[tuple[Block, int], ...]:
        blocks = [(block_of(group.layer), group.count) for group in self.groups]
        return tuple((block, n) for block, n in blocks if block)

    @property
    def main_attention(self) -> Attention | None:
        """The most common attention block; None in a model without attention."""
        attention, _ = max(self.attentions, key=itemgetter(1), default=(None, 0))
        return attention

    @property
    def main_ffn(self) -> Mlp | Moe | None:
        """The most common feed-forward block; None in a model without one."""
        ffn, _ = max(self.ffns, key=itemgetter(1), default=(None, 0))
        return ffn

    @property
    def n_layers(self) -> int:
        """L, the number of layers."""
        return sum(group.count for group in self.groups)

    @property
    def d_ff(self) -> int:
        """F of the most common feed-forward block, of one expert if it is routed; 0 without one."""
        return self.main_ffn.d_ff if self.main_ffn else 0

    @property
    def n_heads(self) -> int:
        """N of the most common attention block; 0 without one."""
        return self.main_attention.n_heads if self.main_attention else 0

    @property
    def n_kv_heads(self) -> int:
        """K of the most common attention block; 0 without one."""
        return self.main_attention.n_kv_heads if self.main_attention else 0

    @property
    def d_head(self) -> int:
        """H of the most common attention block; 0 without one."""
        return self.main_attention.d_head if self.main_attention else 0

    @property
    def moe(self) -> Moe | None:
        """The most common routed feed-forward block; None in a dense model."""
        moe, _ = max(self.moes, key=itemgetter(1), default=(None, 0))
        return moe

    @property
    def is_moe(self) -> bool:
        """Whether some layer routes tokens to experts."""
        return self.moe is not None

    @property
    def n_experts(self) -> int:
        """E, 0 in a dense model."""
        return self.moe.n_experts if self.moe else 0

    @property
    def experts_per_token(self) -> int:
        """k, 0 in a dense model."""
        return self.moe.experts_per_token if self.moe else 0


def stack(config: ModelConfig) -> tuple[Segment, ...]:
    """The layers of a model from first to last, as repeated sequences of groups.

    >>> from shardwise.models import load
    >>> stack(load("gemma2-2b"))
    (Segment(kinds=(0, 1), repeats=13),)
    """
    return config.order or one_after_another([group.count for group in config.groups])
