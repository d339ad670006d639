"""Parameters, FLOPs and cache bytes of a model, all derived from its weights.

Sequence lengths may be plain numbers or NumPy arrays. Letters are those of `weights`; T is the
sequence length, S the mean number of keys to which a query attends. Book: Transformers chapter.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, minimum
from shardwise.models.activations import activation_bytes as activation_bytes
from shardwise.models.activations import element_bytes
from shardwise.models.config import Attention, Layer, Mamba, Moe
from shardwise.models.model import ModelConfig
from shardwise.models.token_prediction import joint_weights, mtp_model
from shardwise.models.weights import PARTS, Weight, layer_weights, outer_weights

# FLOPs of training over those of a forward pass: the backward pass has two matmuls for each one.
TRAINING_PASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Parameters by part.

    Args:
        attention: Projections with their biases, and sinks.
        mamba: Projections, convolutions and the scalars of each head.
        mlp: Dense feed-forward blocks.
        moe: Routers, routed experts, shared experts.
        norm: Norms of every kind.
        embedding: Token embedding and learned position embedding.
        unembedding: Unembedding; 0 if it is the embedding transposed.
        active: Parameters that one token uses: k of E routed experts, and everything else.
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
        attention: Projections of attention, 2 per parameter.
        scores: The attention core: queries times keys, and scores times values.
        mamba: Projections of Mamba blocks, 2 per parameter.
        scan: Scans of Mamba blocks, `scan_flops`.
        mlp: Dense feed-forward blocks, 2 per parameter.
        moe: Router, the routed experts that a token uses, and shared experts, 2 per parameter.
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
        """FLOPs per token of the forward pass."""
        mixers = self.attention + self.scores + self.mamba + self.scan
        return mixers + self.mlp + self.moe + self.unembedding

    @property
    def training(self) -> Num:
        """FLOPs per token of forward and backward pass, without recompute: 3 times `forward`."""
        return TRAINING_PASSES * self.forward


def parameters(config: ModelConfig) -> Counts:
    """Count the parameters of a model by part. Book, Transformers chapter.

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
        if weight.is_matmul:
            matmul += n_active
    if config.tied_embeddings:
        matmul += config.d_model * config.vocab
    return Counts(**parts, active=active, matmul=matmul)


def flops(config: ModelConfig, seq: Num, *, causal: bool = True) -> FlopCounts:
    """Count the FLOPs per token of a model, by part. Book, Transformers chapter.

    A forward pass takes 2 FLOPs per matmul parameter, and 2N(H + Hv)S in the attention core of each
    layer, with S = `mean_visible`, and H = d_nope + d_rope, Hv = d_v under MLA. Embedding lookups,
    norms and biases are not counted.

    Args:
        config: The model.
        seq: Sequence length in tokens.
        causal: False counts masked scores too, as some published values of MFU do.

    Returns:
        FLOPs per token by part, with `.forward` and `.training` totals.
    """
    parts = dict.fromkeys(("attention", "mamba", "mlp", "moe", "unembedding"), 0)
    for weight, count, n_used, n_experts in _all_weights(config):
        if weight.is_matmul:
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
    """Forward FLOPs per token of the scan of a Mamba-2 block: 2 (KM + NH) C/2 + 4 NHM.

    A chunk of C tokens is computed as causal attention with K key heads of width M and N value
    heads of width H. Its state is then written and that of the previous chunk read. Sending states
    from chunk to chunk is not counted. A sequence shorter than C is one chunk.

    Source: arXiv 2405.21060, section 6 and listing 1.
    """
    mean_keys = minimum(mamba.chunk, seq) / 2
    key_width = mamba.n_groups * mamba.d_state
    return 2 * (key_width + mamba.d_inner) * mean_keys + 4 * mamba.d_inner * mamba.d_state


def mean_visible(attention: Attention, seq: Num, *, causal: bool = True) -> Num:
    """Mean number of keys to which a query attends, over the positions of a sequence of T tokens.

    Causal: T/2. Causal with a window W: w - w^2/(2T) with w = min(T, W), the mean of min(t, W) over
    positions t. Causal in chunks of C: C/2 in full chunks, less in the last one. Not causal:
    min(T, W).
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


def model_flops_per_token(config: ModelConfig, seq: Num, mtp_layers: int = 0) -> Num:
    """Training FLOPs per token, the numerator of MFU: 6 per active matmul parameter plus scores.

    Masked scores and recompute are not counted. Layers of multi-token prediction are: each has a
    projection, a Transformer layer and a pass through the unembedding.
    """
    total = flops(config, seq).training
    if not mtp_layers:
        return total
    joined = 2 * sum(weight.size for weight in joint_weights(config) if weight.is_matmul)
    return total + mtp_layers * (flops(mtp_model(config), seq).training + TRAINING_PASSES * joined)


def kv_elements(attention: Attention) -> int:
    """Elements that one layer caches per token: 2KH, or latent and rotary key under MLA."""
    if attention.mla:
        return attention.mla.kv_lora_rank + attention.mla.d_rope
    return 2 * attention.n_kv_heads * attention.d_head


def state_elements(mamba: Mamba) -> int:
    """Elements that a Mamba block caches per sequence: state NHM, d_conv - 1 convolution inputs."""
    return mamba.d_inner * mamba.d_state + mamba.d_scanned * (mamba.d_conv - 1)


def kv_bytes_per_token(config: ModelConfig, element: str | Num = "bf16") -> Num:
    """Bytes that one more token adds to the KV cache while no window is full: 2LKH elements.

    Args:
        config: The model.
        element: Dtype of the cache ("bf16", "int8", ...) or bytes per element.
    """
    size = element_bytes(element)
    return size * sum(n * kv_elements(attention) for attention, n in config.attentions)


def kv_cache_bytes(config: ModelConfig, seq: Num, element: str | Num = "bf16") -> Num:
    """Bytes of the KV cache and Mamba states of one sequence.

    Layers with a window cache at most the keys of their window. Mamba states have a fixed size.

    Args:
        config: The model.
        seq: Tokens in the cache.
        element: Dtype of the cache ("bf16", "int8", ...) or bytes per element.
    """
    n_elements: Num = 0
    for attention, n_layers in config.attentions:
        cached_tokens = seq
        if attention.window is not None:
            cached_tokens = minimum(attention.window, seq)
        n_elements = n_elements + n_layers * kv_elements(attention) * cached_tokens
    for mamba, n_layers in config.mambas:
        n_elements = n_elements + n_layers * state_elements(mamba)
    return element_bytes(element) * n_elements


def used_share(layer: Layer, weight: Weight) -> tuple[int, int]:
    """Share of a weight that one token uses, as (numerator, denominator): k of E if routed."""
    if isinstance(layer.ffn, Moe) and weight.per_expert:
        return layer.ffn.experts_per_token, layer.ffn.n_experts
    return 1, 1


def _all_weights(config: ModelConfig) -> list[tuple[Weight, int, int, int]]:
    """Every weight as (weight, number of layers that have it, *`used_share`)."""
    counted_weights = [(weight, 1, 1, 1) for weight in outer_weights(config)]
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            counted_weights.append((weight, group.count, *used_share(group.layer, weight)))
    return counted_weights
