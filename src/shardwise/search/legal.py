"""Which meshes a model, a batch and a machine admit, and why others are refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from shardwise.hardware import System
from shardwise.models import ModelConfig, Moe
from shardwise.models.checks import near_divisors
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def tensor_widths(config: ModelConfig) -> dict[str, int]:
    """What tensor parallelism splits, over all layers: greatest common divisors by name."""
    heads, widths = [], []
    for group in config.groups:
        heads.append(group.layer.attention.n_heads)
        ffn = group.layer.ffn
        widths.append(ffn.d_ff)
        if isinstance(ffn, Moe) and ffn.d_ff_shared:
            widths.append(ffn.d_ff_shared)
    return {"n_heads": math.gcd(*heads), "d_ff": math.gcd(*widths)}


def kv_heads_divide(config: ModelConfig, tensor: int) -> bool:
    """Each chip holds whole key/value heads, or each head lies on a whole number of chips."""
    heads = {g.layer.attention.n_kv_heads for g in config.groups if not g.layer.attention.mla}
    return all(k % tensor == 0 or tensor % k == 0 for k in heads)


def problems(
    config: ModelConfig, job: Train, system: System, sizes: Mapping[str, int], *, whole: bool
) -> list[str]:
    """Every reason why sizes of mesh roles are not legal, each with what would be.

    Args:
        sizes: role -> size; a role that is not given counts as 1.
        whole: the sizes are a whole mesh, not a part of one that a search may complete.
    """
    n = {"data": 1, "fsdp": 1, "tensor": 1, "context": 1, **sizes}
    found = _chips(system, sizes, whole=whole)
    if not_yet := [r for r in ("expert", "pipe") if n.get(r, 1) > 1]:
        found.append(f"{' and '.join(not_yet)} cannot be planned by this version; leave it at 1.")
    found += _tensor(config, n["tensor"])
    if job.batch % (n["data"] * n["fsdp"]):
        shards = n["data"] * n["fsdp"]
        found.append(
            f"{job.batch:,} sequences do not divide over {shards:,} shards (data {n['data']} x "
            f"fsdp {n['fsdp']}). Nearest batches that do: {near_multiples(job.batch, shards)}."
        )
    if job.seq % (n["context"] * n["tensor"]):
        found.append(
            f"{job.seq:,} tokens of a sequence do not divide over context {n['context']} x "
            f"tensor {n['tensor']}."
        )
    if config.d_model % (n["fsdp"] * n["context"]):
        found.append(
            f"d_model {config.d_model:,} does not divide over fsdp {n['fsdp']} x context "
            f"{n['context']}. Give a part to data."
        )
    return found


def _chips(system: System, sizes: Mapping[str, int], *, whole: bool) -> list[str]:
    """The mesh against the number of chips."""
    chips, used = system.n_chips, math.prod(sizes.values())
    asked = " x ".join(f"{r} {n}" for r, n in sizes.items() if n > 1) or "one chip"
    if whole and used != chips:
        return [f"{asked} is {used:,} chips; {system.name} has {chips:,}."]
    if chips % used:
        return [
            f"{asked} leaves {chips:,} / {used:,} = {chips / used:.2f} chips for the other axes, "
            f"not a whole number. Whole here: {near_divisors(chips, used)}."
        ]
    return []


def _tensor(config: ModelConfig, tensor: int) -> list[str]:
    """The widths that tensor parallelism splits."""
    widths = tensor_widths(config)
    bad = [f"{k} {v:,} (/{tensor} = {v / tensor:.1f})" for k, v in widths.items() if v % tensor]
    if bad:
        works = near_divisors(math.gcd(*widths.values()), tensor)
        return [f"tensor {tensor} does not divide: {', '.join(bad)}. Sizes that do: {works}."]
    if not kv_heads_divide(config, tensor):
        return [f"tensor {tensor} and n_kv_heads {config.n_kv_heads}: neither divides the other."]
    return []


def near_multiples(n: int, of: int) -> str:
    """The multiples of `of` below and above n."""
    below, above = n // of * of, -(-n // of) * of
    return f"{below:,}, {above:,}" if below else f"{above:,}"


def legal_meshes(
    config: ModelConfig, job: Train, system: System, fixed: Mapping[str, int]
) -> Iterator[Mesh]:
    """Every mesh of data, fsdp, tensor and context that divides evenly.

    Args:
        fixed: roles whose size is given.
    """
    chips = system.n_chips
    widths = math.gcd(*tensor_widths(config).values())
    for tensor in _sizes(widths, "tensor", fixed):
        if chips % tensor or not kv_heads_divide(config, tensor) or job.seq % tensor:
            continue
        rest = chips // tensor
        for context in _sizes(math.gcd(rest, job.seq // tensor), "context", fixed):
            if config.d_model % context:
                continue
            shards = rest // context
            if job.batch % shards:
                continue
            for fsdp in _sizes(math.gcd(shards, config.d_model // context), "fsdp", fixed):
                data = shards // fsdp
                if fixed.get("data", data) == data:
                    yield Mesh(data=data, fsdp=fsdp, tensor=tensor, context=context)


def _sizes(n: int, role: str, fixed: Mapping[str, int]) -> list[int]:
    """Divisors of n, or the one size that was asked for when it is one of them."""
    if role in fixed:
        return [fixed[role]] if n % fixed[role] == 0 else []
    return divisors(n)


def batch_shards(config: ModelConfig, seq: int, system: System) -> list[int]:
    """Over how many shards a batch can be split on all chips, by some tensor and context."""
    found = set()
    widths = math.gcd(*tensor_widths(config).values())
    for tensor in divisors(widths):
        if system.n_chips % tensor or seq % tensor or not kv_heads_divide(config, tensor):
            continue
        rest = system.n_chips // tensor
        for context in divisors(math.gcd(rest, seq // tensor)):
            if config.d_model % context == 0:
                found.add(rest // context)
    return sorted(found)
