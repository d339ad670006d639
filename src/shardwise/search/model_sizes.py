"""Sizes of mesh axes that divide a model, in training and in serving."""

from __future__ import annotations

import math

from shardwise.models import ModelConfig, Moe
from shardwise.models.checks import near_divisors

# The fewest tokens of a sequence that a chip holds under context parallelism in any published run.
# Matmuls and attention over fewer tokens leave their tiles unfilled, so a search goes no further.
MIN_TOKENS_PER_CHIP = 1024


def worth_cutting(seq: int, context: int) -> bool:
    """Whether a search shards sequences of `seq` tokens over `context` chips."""
    return context == 1 or seq >= context * MIN_TOKENS_PER_CHIP


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def tensor_widths(config: ModelConfig) -> dict[str, int]:
    """Widths that tensor parallelism shards: greatest common divisors over all layers, by name.

    Each chip holds whole groups of a Mamba block (Megatron Core's MambaMixer asserts it).
    """
    heads = [attention.n_heads for attention, _ in config.attentions]
    heads += [mamba.n_heads for mamba, _ in config.mambas]
    ff_widths = []
    for ffn in (group.layer.ffn for group in config.groups if group.layer.ffn):
        ff_widths.append(ffn.d_ff)
        if isinstance(ffn, Moe) and ffn.d_ff_shared:
            ff_widths.append(ffn.d_ff_shared)
    groups = [mamba.n_groups for mamba, _ in config.mambas]
    sizes_by_name = {"n_heads": heads, "d_ff": ff_widths, "n_groups": groups}
    return {name: math.gcd(*sizes) for name, sizes in sizes_by_name.items() if sizes}


def kv_heads_divide(config: ModelConfig, tensor: int) -> bool:
    """Whether each chip holds whole key/value heads, or whole chips share each head."""
    heads = {a.n_kv_heads for a, _ in config.attentions if not a.mla}
    return all(k % tensor == 0 or tensor % k == 0 for k in heads)


def n_experts(config: ModelConfig) -> int:
    """Experts to shard over chips: the greatest common divisor over all layers, or 1."""
    routed = [g.layer.ffn.n_experts for g in config.groups if isinstance(g.layer.ffn, Moe)]
    return math.gcd(*routed) if routed else 1


def tensor_problems(config: ModelConfig, tensor: int) -> list[str]:
    """The widths and heads that `tensor` shards do not divide, with sizes that do."""
    widths = tensor_widths(config)
    uneven = []
    for name, width in widths.items():
        if width % tensor:
            uneven.append(f"{name} {width:,} (/{tensor} = {width / tensor:.1f})")
    if uneven:
        sizes = near_divisors(math.gcd(*widths.values()), tensor)
        return [f"tensor {tensor} does not divide: {', '.join(uneven)}. Sizes that do: {sizes}."]
    if not kv_heads_divide(config, tensor):
        return [f"tensor {tensor} and n_kv_heads {config.n_kv_heads}: neither divides the other."]
    return []


def expert_problems(config: ModelConfig, expert: int) -> list[str]:
    """Why the experts do not divide over `expert` chips, with sizes that do."""
    experts = n_experts(config)
    if experts % expert == 0:
        return []
    if experts == 1:
        return [f"expert {expert}: {config.name} has no experts to shard; leave it at 1."]
    return [
        f"expert {expert} does not divide {experts} experts. Sizes that do: "
        f"{near_divisors(experts, expert)}."
    ]
