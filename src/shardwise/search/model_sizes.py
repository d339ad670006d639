"""Sizes of mesh roles by which a model's widths and experts are divisible."""

from __future__ import annotations

import math

from shardwise.arrays import Num
from shardwise.models import ModelConfig
from shardwise.models.checks import near_divisors

# No published run with context parallelism has fewer tokens of a sequence on a chip. A search does
# not try fewer either, as matmuls and attention would leave parts of their tiles empty.
MIN_TOKENS_PER_CHIP = 1024


def worth_sharding(seq: int, context: int) -> bool:
    """Whether a search tries to shard sequences of `seq` tokens over `context` chips."""
    return context == 1 or seq >= context * MIN_TOKENS_PER_CHIP


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def tensor_widths(config: ModelConfig) -> dict[str, int]:
    """Name -> width of the model that the `tensor` axis must divide, as Megatron shards it.

    A width that differs between layers counts as the greatest common divisor over the layers. The
    groups of a Mamba block are among the widths because each chip holds whole groups (Megatron
    Core's MambaMixer asserts it).
    """
    heads = [attention.n_heads for attention, _ in config.attentions]
    heads += [mamba.n_heads for mamba, _ in config.mambas]
    ff_widths = [ffn.d_ff for ffn, _ in config.ffns]
    ff_widths += [moe.d_ff_shared for moe, _ in config.moes if moe.d_ff_shared]
    groups = [mamba.n_groups for mamba, _ in config.mambas]
    sizes_by_name = {"n_heads": heads, "d_ff": ff_widths, "n_groups": groups}
    return {name: math.gcd(*sizes) for name, sizes in sizes_by_name.items() if sizes}


def kv_heads_divide(config: ModelConfig, tensor: Num) -> Num:
    """Whether `tensor` chips hold the same number of KV heads each, or share each head equally."""
    divide = tensor > 0
    for n_heads in {a.n_kv_heads for a, _ in config.attentions if not a.mla}:
        divide = divide & ((n_heads % tensor == 0) | (tensor % n_heads == 0))
    return divide


def n_experts(config: ModelConfig) -> int:
    """Number of routed experts, or its greatest common divisor over the layers; 1 if dense."""
    return math.gcd(*(moe.n_experts for moe, _ in config.moes)) or 1


def tensor_problems(config: ModelConfig, tensor: int) -> list[str]:
    """Messages about the widths and heads that `tensor` does not divide, with sizes that do."""
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
    """Messages about a number of experts that `expert` does not divide, with sizes that do."""
    experts = n_experts(config)
    if experts % expert == 0:
        return []
    if experts == 1:
        return [f"expert {expert}: {config.name} has no experts to shard; leave it at 1."]
    return [
        f"expert {expert} does not divide {experts} experts. Sizes that do: "
        f"{near_divisors(experts, expert)}."
    ]
