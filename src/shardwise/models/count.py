"""Parameters, FLOPs and cache bytes of a model, all derived from its weights.

Formulas take plain numbers or NumPy arrays of sequence lengths. Letters are those of `weights`;
T is the sequence length, S the mean number of keys per query. Book: Transformers chapter.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, minimum
from shardwise.models.activations import activation_bytes as activation_bytes
from shardwise.models.config import Attention, Layer, Mamba, Moe
from shardwise.models.model import ModelConfig
from shardwise.models.weights import PARTS, Weight, layer_weights, outer_weights

TRAINING_PASSES = 3  # one forward; the backward pass is two matmuls for each of its matmuls


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Parameters by part.

    Args:
        attention: Projections with their biases and sinks.
        mamba: Projections, convolution and the numbers of each head.
        mlp: Dense feed-forward.
        moe: Router, routed experts, shared experts.
        norm: Norms of every kind.
        embedding: Token and learned position embeddings.
        unembedding: 0 if it is the embedding transposed.
        active: Parameters that one token uses: k of E routed experts, everything else.
        matmul: Parameters in the matmuls of one token, the N of 6N FLOPs: `active` without norms,
            biases and embedding lookups, but with the unembedding even if it is tied.
    """

    attention: int
    mamba: int
    mlp: int
    moe: int
    norm: int
    embedding: int
    unembedding: int
    active: int
    matmul: int

    @property
    def total(self) -> int:
        """All parameters stored."""
        parts = self.attention + self.mamba + self.mlp + self.moe
        return parts + self.norm + self.embedding + self.unembedding


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCounts:
    """Forward FLOPs of one token by part, averaged over a sequence.

    Args:
        attention: Projections, 2 per parameter.
        scores: Queries times keys and weights times values.
        mamba: Projections of Mamba blocks, 2 per parameter.
        scan: Products of their scans, `scan_flops`.
        mlp: Dense feed-forward, 2 per parameter.
        moe: Router, the experts a token uses and the shared experts, 2 per parameter.
        unembedding: 2DV.
    """

    attention: Num
    scores: Num
    mamba: Num
    scan: Num
    mlp: Num
    moe: Num
    unembedding: Num

    @property
    def forward(self) -> Num:
        """FLOPs of the forward pass per token."""
        mixers = self.attention + self.scores + self.mamba + self.scan
        return mixers + self.mlp + self.moe + self.unembedding

    @property
    def training(self) -> Num:
        """FLOPs of forward and backward per token: 6 per parameter, no recompute."""
        return TRAINING_PASSES * self.forward


def parameters(config: ModelConfig) -> Counts:
    """Parameters by part: the sum of `weights` over all layers. Book, Transformers chapter.

    >>> from shardwise.models import load
    >>> parameters(load("llama3-70b")).total
    70553706496
    """
    parts = dict.fromkeys(PARTS, 0)
    active = 0
    matmul = 0
    for weight, count, n_used, n_experts in _all_weights(config):
        parts[weight.part] += count * weight.size
        n_active = count * weight.size * n_used // n_experts
        active += n_active
        if weight.matmul:
            matmul += n_active
    if config.tied_embeddings:
        matmul += config.d_model * config.vocab
    return Counts(**parts, active=active, matmul=matmul)


def flops(config: ModelConfig, seq: Num, *, causal: bool = True) -> FlopCounts:
    """Forward FLOPs per token: 2 per matmul parameter, and scores 2N(H + Hv)S.

    S is the mean number of keys per query, `mean_visible`. Embedding lookups, norms and biases
    are not counted. Book, Transformers chapter; under MLA H = d_nope + d_rope and Hv = d_v.

    Args:
        config: The model.
        seq: Sequence length in tokens.
        causal: False counts the full square of scores, as some published MFU figures do.

    Returns:
        FLOPs per token by part, with `.forward` and `.training` totals.
    """
    parts = dict.fromkeys(("attention", "mamba", "mlp", "moe", "unembedding"), 0)
    for weight, count, n_used, n_experts in _all_weights(config):
        if weight.matmul:
            parts[weight.part] += 2 * count * weight.size * n_used // n_experts
    if config.tied_embeddings:
        parts["unembedding"] += 2 * config.d_model * config.vocab
    scores: Num = 0
    for attention, n_layers in config.attentions:
        width = 2 * attention.n_heads * (attention.d_head + attention.d_head_v)
        scores = scores + n_layers * width * mean_visible(attention, seq, causal=causal)
    scan: Num = 0
    for mamba, n_layers in config.mambas:
        scan = scan + n_layers * scan_flops(mamba, seq)
    return FlopCounts(**parts, scores=scores, scan=scan)


def scan_flops(mamba: Mamba, seq: Num) -> Num:
    """Forward FLOPs of one token in the scan of a Mamba-2 block: 2 (KM + NH) C/2 + 4 NHM.

    A chunk of C tokens is computed as masked attention, at half the square, with M-wide keys of K
    groups and values of N heads; then its state is written and the previous state read. Passing
    states between chunks is not counted.
    Source: arXiv 2405.21060, section 6 and listing 1. A sequence below C is one chunk.
    """
    mean_keys = minimum(mamba.chunk, seq) / 2
    groups = mamba.n_groups * mamba.d_state
    return 2 * (groups + mamba.d_inner) * mean_keys + 4 * mamba.d_inner * mamba.d_state


def mean_visible(attention: Attention, seq: Num, *, causal: bool = True) -> Num:
    """Mean number of keys a query attends to; causal attention has half the square.

    Causal: T/2. Window W: the mean of min(t, W) over positions t, w - w^2/(2T) with w = min(T, W).
    Chunks of C: C/2 in full chunks, less in the last one. Not causal: min(T, W).
    """
    window = seq
    if attention.window is not None:
        window = minimum(attention.window, seq)
    if not (causal and attention.causal):
        return window
    if attention.chunked:
        last_chunk = seq % window
        return (window * (seq - last_chunk) + last_chunk * last_chunk) / (2 * seq)
    return window - window * window / (2 * seq)


def model_flops_per_token(config: ModelConfig, seq: Num) -> Num:
    """Training FLOPs per token, the numerator of MFU: 6 per active matmul parameter plus scores.

    Causal attention at half the square, no recompute.
    """
    return flops(config, seq).training


def kv_elements(attention: Attention) -> int:
    """Elements that one layer caches per token: 2KH, or the latent and rope key under MLA."""
    if attention.mla:
        return attention.mla.kv_lora_rank + attention.mla.d_rope
    return 2 * attention.n_kv_heads * attention.d_head


def state_elements(mamba: Mamba) -> int:
    """Elements of a Mamba block's state per sequence: NHM, and d_conv - 1 convolution inputs."""
    return mamba.d_inner * mamba.d_state + mamba.d_scanned * (mamba.d_conv - 1)


def kv_bytes_per_token(config: ModelConfig, element: str | Num = "bf16") -> Num:
    """KV-cache bytes that one more token adds while no window is full: 2LKH elements.

    Args:
        config: The model.
        element: Type of the cache ("bf16", "int8", ...) or bytes per element.
    """
    size = _element_bytes(element)
    return size * sum(n * kv_elements(attention) for attention, n in config.attentions)


def kv_cache_bytes(config: ModelConfig, seq: Num, element: str | Num = "bf16") -> Num:
    """Cache bytes of one sequence.

    Layers with a window cache at most their window; the state of a Mamba block has a fixed size.

    Args:
        config: The model.
        seq: Tokens in the cache.
        element: Type of the cache ("bf16", "int8", ...) or bytes per element.
    """
    n_elements: Num = 0
    for attention, n_layers in config.attentions:
        cached_tokens = seq
        if attention.window is not None:
            cached_tokens = minimum(attention.window, seq)
        n_elements = n_elements + n_layers * kv_elements(attention) * cached_tokens
    for mamba, n_layers in config.mambas:
        n_elements = n_elements + n_layers * state_elements(mamba)
    return _element_bytes(element) * n_elements


def used_share(layer: Layer, weight: Weight) -> tuple[int, int]:
    """Share of a weight that one token uses, as (numerator, denominator): k of E if routed."""
    if isinstance(layer.ffn, Moe) and weight.per_expert:
        return layer.ffn.experts_per_token, layer.ffn.n_experts
    return 1, 1


def _all_weights(config: ModelConfig) -> list[tuple[Weight, int, int, int]]:
    """(weight, number of occurrences, *`used_share`) of all weights."""
    counted_weights = [(weight, 1, 1, 1) for weight in outer_weights(config)]
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            counted_weights.append((weight, group.count, *used_share(group.layer, weight)))
    return counted_weights


def _element_bytes(element: str | Num) -> Num:
    if isinstance(element, str):
        return units.bytes_per_element(element)
    return element
