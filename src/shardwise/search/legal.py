"""Which meshes a model, a batch and a machine admit, and why others are refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from shardwise.hardware import System
from shardwise.models import ModelConfig, Moe
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


def problems(config: ModelConfig, job: Train, system: System, mesh: Mesh) -> list[str]:
    """Every reason why a mesh is not legal, each with what would be."""
    found = []
    if mesh.n_chips != system.n_chips:
        found.append(f"{mesh} uses {mesh.n_chips:,} chips; {system.name} has {system.n_chips:,}.")
    if not_yet := [r for r in ("expert", "pipe") if getattr(mesh, r) > 1]:
        found.append(f"{' and '.join(not_yet)} cannot be planned by this version; leave it at 1.")
    widths = tensor_widths(config)
    bad = {k: v for k, v in widths.items() if v % mesh.tensor}
    if bad:
        parts = ", ".join(
            f"{k} {v:,} (/{mesh.tensor} = {v / mesh.tensor:.1f})" for k, v in bad.items()
        )
        works = [d for d in divisors(math.gcd(*widths.values())) if d <= 4 * mesh.tensor]
        found.append(
            f"tensor {mesh.tensor} does not divide: {parts}. "
            f"Divisors that work: {' '.join(map(str, works))}."
        )
    elif not kv_heads_divide(config, mesh.tensor):
        found.append(
            f"tensor {mesh.tensor} and n_kv_heads {config.n_kv_heads}: neither divides the other."
        )
    if job.batch % (mesh.data * mesh.fsdp):
        found.append(
            f"{job.batch:,} sequences do not divide over {mesh.data * mesh.fsdp:,} shards "
            f"(data {mesh.data} x fsdp {mesh.fsdp})."
        )
    if job.seq % (mesh.context * mesh.tensor):
        found.append(
            f"{job.seq:,} tokens of a sequence do not divide over context {mesh.context} x "
            f"tensor {mesh.tensor}."
        )
    if config.d_model % (mesh.fsdp * mesh.context):
        found.append(
            f"d_model {config.d_model:,} does not divide over fsdp {mesh.fsdp} x context "
            f"{mesh.context}. Give a part to data."
        )
    return found


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
