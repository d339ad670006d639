"""Prefill and decode of one model on its chips. Book §7, §8.

A decode step reads every weight once and every sequence's KV cache once, and multiplies each
weight with B tokens:

    T = B KV / (N W) + max(2 B P / (N C), P e / (N W))

B sequences, KV cache bytes of one, P parameters of e bytes, N chips, C FLOP/s, W HBM bytes/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.arrays import Num, maximum
from shardwise.hardware import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """One token for every sequence of a batch.

    Args:
        batch: Sequences that decode at once.
        n_chips: Chips that share the work.
        kv_s: Seconds to read all KV caches.
        weights_s: Seconds to read the weights.
        math_s: Seconds of the matmuls at peak.
    """

    batch: Num
    n_chips: Num
    kv_s: Num
    weights_s: Num
    math_s: Num

    @property
    def step_s(self) -> Num:
        """Attention is always bound by reading KV; the matmuls by the longer of their two."""
        return self.kv_s + maximum(self.math_s, self.weights_s)

    @property
    def tokens_per_s(self) -> Num:
        """B tokens a step."""
        return self.batch / self.step_s

    @property
    def tokens_per_s_per_chip(self) -> Num:
        return self.tokens_per_s / self.n_chips


def decode_step(
    batch: Num,
    kv_bytes: Num,
    weight_bytes: Num,
    *,
    n_chips: Num,
    hbm_bytes_per_s: Num,
    params: Num = 0.0,
    flops_per_s: Num = float("inf"),
) -> DecodeStep:
    """Times of one decode step with HBM perfectly used. Book §7.

    Args:
        batch: B.
        kv_bytes: KV cache bytes of one sequence.
        weight_bytes: Bytes of all weights that a step reads.
        n_chips: N.
        hbm_bytes_per_s: W of one chip.
        params: Parameters that each token meets; left out, the step is bound by memory alone.
        flops_per_s: C of one chip at the dtype that is computed in.
    """
    bandwidth = n_chips * hbm_bytes_per_s
    return DecodeStep(
        batch=batch,
        n_chips=n_chips,
        kv_s=batch * kv_bytes / bandwidth,
        weights_s=weight_bytes / bandwidth,
        math_s=2 * batch * params / (n_chips * flops_per_s),
    )


def weight_read_s(
    params: Num, element_bytes: Num, *, n_chips: Num = 1, hbm_bytes_per_s: Num
) -> Num:
    """P e / (N W): no decode step is shorter. Book §2 question 1, §7.

    >>> round(weight_read_s(18.4e9, 1, n_chips=16, hbm_bytes_per_s=8.2e11), 6)
    0.001402
    """
    return params * element_bytes / (n_chips * hbm_bytes_per_s)


def prefill_s(params: Num, tokens: Num, *, n_chips: Num, flops_per_s: Num, mfu: Num = 1.0) -> Num:
    """2 P T / (N C MFU): a prompt of T tokens. Book §7, §8."""
    return 2 * params * tokens / (n_chips * flops_per_s * mfu)


def prefill_share(tokens: Num, cached: Num) -> Num:
    """Share of a prompt still to compute when its first `cached` tokens are in a prefix cache."""
    return (tokens - cached) / tokens


def max_batch(n_chips: Num, hbm_bytes: Num, weight_bytes: Num, kv_bytes: Num) -> Num:
    """floor((N HBM - weights) / KV): sequences whose caches fit beside the weights. Book §7, §8.

    >>> max_batch(16, 16e9, 70e9, 8192 * 160e3)
    141.0
    """
    return (n_chips * hbm_bytes - weight_bytes) // kv_bytes


def caches_to_match(weight_bytes: Num, kv_bytes: Num) -> Num:
    """The fewest sequences whose KV caches together outweigh the weights. Book §7."""
    return weight_bytes // kv_bytes + 1


def full_memory_step_s(hbm_bytes: Num, hbm_bytes_per_s: Num) -> Num:
    """HBM / W: the step that reads all of a chip's memory; any full server is this slow. Book §8.

    >>> round(full_memory_step_s(16e9, 8.2e11), 4)
    0.0195
    """
    return hbm_bytes / hbm_bytes_per_s


def kv_bound_context(
    params: Num, kv_bytes_per_token: Num, *, hbm_bytes_per_s: Num, flops_per_s: Num
) -> Num:
    """S > 2 P W / (C kv): contexts whose KV reads outlast the FLOPs at every batch. Book §8."""
    return 2 * params * hbm_bytes_per_s / (flops_per_s * kv_bytes_per_token)


def beta(chip: Chip) -> float:
    """W_hbm / W_ici of one axis, both directions: about 9 on v5e. Book §7.

    Raises:
        UnknownFigure: The chip lacks one of the two.
    """
    return chip.need("hbm.bandwidth") / (2 * chip.need("ici.link"))


def memory_bound_tensor_limit(d_ff: Num, batch: Num, beta: Num, *, n_axes: Num = 1) -> Num:
    """Y < M F / (B beta): tensor parallelism that still speeds up a decode bound by memory.

    Reading 2DF/(YW_hbm) of weights against sending 2BD/W_ici of activations. Book §7.
    """
    return n_axes * d_ff / (batch * beta)


def latency_bound_degree(
    batch: Num,
    d_model: Num,
    *,
    link_bytes_per_s_one_way: Num,
    hop_s: Num,
    element_bytes: Num = 1.0,
) -> Num:
    """Y > e B D / (W1 T_min): degrees at which activations are sent at latency. Book §7, app. C."""
    return element_bytes * batch * d_model / (link_bytes_per_s_one_way * hop_s)


def mfu(params: Num, batch: Num, step_s: Num, *, n_chips: Num, flops_per_s: Num) -> Num:
    """2 P B / (N C step): FLOPs of a decode step over what the chips could do meanwhile."""
    return 2 * params * batch / (n_chips * flops_per_s * step_s)


def max_context(hbm_bytes: Num, kv_bytes_per_token: Num, batch: Num, *, share: Num = 1.0) -> Num:
    """S = share * HBM / (B kv): the longest context whose caches fit in a share of the memory.

    Pope et al., arXiv 2211.05102: the memory is that of all chips where the cache is sharded over
    heads or batch, and of one chip where every chip holds the same heads.
    """
    return share * hbm_bytes / (batch * kv_bytes_per_token)


def message_latency_s(n_layers: Num, messages: Num, latency_s: Num) -> Num:
    """L messages per layer, each at its latency: what a small batch waits for the network.

    kipply, "Transformer Inference Arithmetic" (2022-03): 4 messages of about 8 us a layer.
    """
    return n_layers * messages * latency_s


def activation_send_s(
    n_layers: Num,
    messages: Num,
    batch: Num,
    d_model: Num,
    bytes_per_s: Num,
    element_bytes: Num = 2.0,
) -> Num:
    """e L messages B D / W: activations of a large batch sent between the chips of a server.

    kipply, "Transformer Inference Arithmetic" (2022-03): 4 messages of B D elements a layer.
    """
    return element_bytes * n_layers * messages * batch * d_model / bytes_per_s


def speculative_tokens(acceptance: Num, drafted: int) -> Num:
    """1 + a + ... + a^K: tokens that one pass of the large model yields from K drafted ones.

    Leviathan et al., arXiv 2211.17192; the output distribution is that of the large model.

    >>> speculative_tokens(0.5, 2)
    1.75
    """
    return sum(acceptance**i for i in range(drafted + 1))


def kv_split(n_chips: int, n_kv_heads: int, batch: int) -> tuple[int, int, int]:
    """Ways to split KV caches over heads, then sequences, then length; each divides what it splits.

    Heads need no communication, splitting the batch two AllToAlls a layer. Book §7.

    >>> kv_split(32, 8, 16)
    (8, 4, 1)
    """
    heads = math.gcd(n_chips, n_kv_heads)
    sequences = math.gcd(n_chips // heads, batch)
    return heads, sequences, n_chips // heads // sequences
