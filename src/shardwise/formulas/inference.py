"""Inference: prefill, decode steps, and the capacity of a server. Book §7, §8.

A decode step reads every weight and every sequence's KV cache once, and multiplies each weight by
B tokens:

    T = B KV / (N W) + max(2 B P / (N C), P e / (N W))

B sequences, KV bytes in the cache of one sequence, P parameters of e bytes, N chips, C FLOP/s and W
HBM bytes/s of one chip. In the formulas of servers: t seconds of a step, P prompt tokens and G
generated tokens of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, maximum
from shardwise.formulas.flops import compute_s, forward_flops
from shardwise.hardware import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """Times of a decode step: one token for every sequence of a batch. Book §7.

    Args:
        batch: Sequences in the step.
        n_chips: Chips of the server.
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
        """kv_s + max(math_s, weights_s): attention is always bound by reading the KV caches."""
        return self.kv_s + maximum(self.math_s, self.weights_s)

    @property
    def tokens_per_s(self) -> Num:
        """B / T: generated tokens per second, on all chips together."""
        return self.batch / self.step_s

    @property
    def tokens_per_s_per_chip(self) -> Num:
        """B / (T N): generated tokens per second and chip."""
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
    """Compute the times of one decode step at full HBM bandwidth. Book §7.

    Args:
        batch: B.
        kv_bytes: KV cache bytes of one sequence.
        weight_bytes: Bytes of all weights that a step reads.
        n_chips: N.
        hbm_bytes_per_s: W of one chip.
        params: Parameters active per token; by default the step is bound by memory alone.
        flops_per_s: C of one chip at the compute dtype.
    """
    bandwidth = n_chips * hbm_bytes_per_s
    return DecodeStep(
        batch=batch,
        n_chips=n_chips,
        kv_s=batch * kv_bytes / bandwidth,
        weights_s=weight_bytes / bandwidth,
        math_s=compute_s(forward_flops(params, batch), n_chips, flops_per_s),
    )


def weight_read_s(
    params: Num, element_bytes: Num, *, n_chips: Num = 1, hbm_bytes_per_s: Num
) -> Num:
    """P e / (N W): seconds to read all weights, a lower bound of a decode step. Book §2 Q1, §7.

    >>> round(weight_read_s(18.4e9, 1, n_chips=16, hbm_bytes_per_s=8.2e11), 6)
    0.001402
    """
    return params * element_bytes / (n_chips * hbm_bytes_per_s)


def prefill_s(params: Num, tokens: Num, *, n_chips: Num, flops_per_s: Num, mfu: Num = 1.0) -> Num:
    """2 P T / (N C MFU): seconds of a prompt of T tokens. Book §7, §8."""
    return compute_s(forward_flops(params, tokens), n_chips, flops_per_s, mfu)


def prefill_share(tokens: Num, cached: Num) -> Num:
    """(T - cached) / T: share of a prompt's T tokens that are not in a prefix cache. Book §7."""
    return (tokens - cached) / tokens


def max_batch(n_chips: Num, hbm_bytes: Num, weight_bytes: Num, kv_bytes: Num) -> Num:
    """floor((N HBM - weights) / KV): sequences whose KV caches fit into HBM. Book §7, §8.

    >>> max_batch(16, 16e9, 70e9, 8192 * 160e3)
    141.0
    """
    return (n_chips * hbm_bytes - weight_bytes) // kv_bytes


def caches_to_match(weight_bytes: Num, kv_bytes: Num) -> Num:
    """The fewest sequences whose KV caches are larger than the weights. Book §7."""
    return weight_bytes // kv_bytes + 1


def full_memory_step_s(hbm_bytes: Num, hbm_bytes_per_s: Num) -> Num:
    """HBM / W: seconds of a decode step that reads all of each chip's memory. Book §8.

    This is the step of a server whose HBM is full of weights and KV caches.

    >>> round(full_memory_step_s(16e9, 8.2e11), 4)
    0.0195
    """
    return hbm_bytes / hbm_bytes_per_s


def kv_bound_context(
    params: Num, kv_bytes_per_token: Num, *, hbm_bytes_per_s: Num, flops_per_s: Num
) -> Num:
    """Context above which KV reads take longer than the matmuls: 2 P W / (C kv). Book §8.

    Both grow with the batch, so that the batch cancels out.
    """
    return 2 * params * hbm_bytes_per_s / (flops_per_s * kv_bytes_per_token)


def beta(chip: Chip) -> float:
    """W_hbm / W_net: HBM bandwidth divided by network bandwidth. Book §7.

    W_net is both directions of one ICI axis on TPUs (beta is about 9 on v5e), and the bandwidth out
    of one GPU inside its node on GPUs.

    Raises:
        UnknownFigure: One of the two bandwidths is not known for the chip.
    """
    if chip.ici:
        return chip.need("hbm.bandwidth") / (2 * chip.need("ici.link"))
    return chip.need("hbm.bandwidth") / chip.need("node.egress")


def memory_bound_tensor_limit(d_ff: Num, batch: Num, beta: Num, *, n_axes: Num = 1) -> Num:
    """Largest tensor degree that speeds up a memory-bound decode step: M F / (B beta). Book §7.

    At this degree Y, reading weights for 2DF/(Y W_hbm) takes as long as sending activations over M
    axes for 2BD/(M W_ici).
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
    """Degree above which the latency of a hop dominates: e B D / (W1 T_min). Book §7, app. C.

    W1 is one direction of one link, T_min the latency of a hop; a shard of e B D / Y bytes then
    takes less than T_min.
    """
    return element_bytes * batch * d_model / (link_bytes_per_s_one_way * hop_s)


def max_context(hbm_bytes: Num, kv_bytes_per_token: Num, batch: Num, *, share: Num = 1.0) -> Num:
    """Longest context whose KV caches fit in a share of the memory: share * HBM / (B kv).

    Pope et al., arXiv 2211.05102.

    Args:
        hbm_bytes: Memory of all chips if the cache is sharded over heads or batch; of one chip if
            every chip holds the same heads.
        kv_bytes_per_token: Cache bytes of one token.
        batch: B.
        share: Share of the memory for KV caches.
    """
    return share * hbm_bytes / (batch * kv_bytes_per_token)


def message_latency_s(n_layers: Num, messages: Num, latency_s: Num) -> Num:
    """Seconds of network latency in one pass: layers x messages per layer x seconds per message.

    kipply, "Transformer Inference Arithmetic" (2022-03) assumes 4 messages of about 8 us per layer.
    """
    return n_layers * messages * latency_s


def speculative_tokens(acceptance: Num, drafted: int) -> Num:
    """Expected tokens per pass of the target model with K drafted tokens: 1 + a + ... + a^K.

    a is the probability that a drafted token is accepted. The output has the distribution of the
    target model. Leviathan et al., arXiv 2211.17192.

    >>> speculative_tokens(0.5, 2)
    1.75
    """
    return sum(acceptance**power for power in range(drafted + 1))


def speculative_token_s(step_s: Num, acceptance: Num, drafted: int, draft_cost: Num) -> Num:
    """Seconds per token with speculative decoding: t (1 + K c) / (1 + a + ... + a^K).

    Leviathan et al., arXiv 2211.17192, section 3.3.

    Args:
        step_s: t, seconds of a pass of the target model, which verifies all drafted tokens.
        acceptance: a, probability that a drafted token is accepted.
        drafted: K, drafted tokens per pass; 0 for no speculation.
        draft_cost: c, seconds of a pass of the draft model divided by t.

    >>> speculative_token_s(7.0, 0.5, 2, 0.125)
    5.0
    """
    return step_s * (1 + drafted * draft_cost) / speculative_tokens(acceptance, drafted)


def decode_s(step_s: Num, generated: Num) -> Num:
    """t G: seconds to generate G tokens. Book §8."""
    return step_s * generated


def query_rate(batch: Num, step_s: Num, generated: Num) -> Num:
    """B / (t G): queries per second of one server. Book §8.

    >>> round(query_rate(43, 0.019, 512), 2)
    4.42
    """
    return batch / (step_s * generated)


def finished_per_step(batch: Num, generated: Num) -> Num:
    """B / G: sequences that end per step in steady state. Book §8."""
    return batch / generated


def evicted_per_step(batch: Num, prompt: Num, generated: Num) -> Num:
    """B (P + G) / G: cached tokens evicted per step in steady state. Book §8.

    >>> evicted_per_step(32, 8192, 4096)
    96.0
    """
    return batch * (prompt + generated) / generated


def prefill_servers(prefill_s: Num, step_s: Num, batch: Num, generated: Num) -> Num:
    """t_prefill B / (t G): prefill servers that keep one decode server busy. Book §8.

    Args:
        prefill_s: t_prefill, seconds of one prompt on a prefill server.
        step_s: t, seconds of a step on the decode server.
        batch: B, sequences in a decode step.
        generated: G, generated tokens of a request.
    """
    return prefill_s * query_rate(batch, step_s, generated)
