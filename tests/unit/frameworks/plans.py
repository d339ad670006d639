"""Plans of many layouts, made once: dense and expert models, training and serving."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import shardwise as sw

Settings = dict[str, Any]

# Name -> model, machine, batch, sequence, settings of the whole strategy.
TRAINING: dict[str, tuple[str, str, int, int, Settings]] = {
    "fsdp-tensor": ("llama3-8b", "h100:64", 256, 4096, {"fsdp": 16, "tensor": 4}),
    "zero1": ("llama3-8b", "h100:64", 256, 4096, {"data": 8, "tensor": 8, "zero": 1}),
    "zero2": ("llama3-8b", "h100:32", 256, 4096, {"data": 16, "tensor": 2, "zero": 2}),
    "hybrid": ("llama3-8b", "h100:64", 256, 4096, {"data": 4, "fsdp": 16}),
    "context": (
        "llama3-8b", "h100:64", 64, 16384,
        {"fsdp": 8, "tensor": 4, "context": 2, "context_kind": "ring"},
    ),
    "ulysses": (
        "llama3-8b", "h100:64", 64, 16384,
        {"fsdp": 16, "context": 4, "context_kind": "ulysses"},
    ),
    "1f1b": (
        "llama3-70b", "h100:128", 256, 4096,
        {"data": 4, "tensor": 8, "pipe": 4, "schedule": "1f1b", "zero": 1},
    ),
    "interleaved": (
        "llama3-70b", "h100:128", 256, 4096,
        {"data": 4, "tensor": 8, "pipe": 4, "schedule": "interleaved", "virtual": 4, "zero": 1},
    ),
    "uneven": (  # 126 layers in 128 chunks
        "llama3.1-405b", "h100:512", 256, 8192,
        {"data": 4, "tensor": 8, "pipe": 16, "schedule": "interleaved", "virtual": 8, "zero": 1},
    ),
    "empty-chunks": (  # 36 layers in 40 chunks
        "gpt-oss-120b", "h100:256", 256, 4096,
        {"data": 4, "expert": 8, "pipe": 8, "schedule": "interleaved", "virtual": 5, "zero": 1},
    ),
    "gpipe": (
        "llama3-70b", "h100:128", 256, 4096,
        {"data": 4, "tensor": 8, "pipe": 4, "schedule": "gpipe", "zero": 1},
    ),
    "experts": ("mixtral-8x7b", "h100:64", 256, 4096, {"fsdp": 8, "expert": 8}),
    "whole-experts": (
        "mixtral-8x7b", "h100:64", 256, 4096,
        {"fsdp": 8, "expert": 2, "tensor": 4, "expert_tensor": 1},
    ),
    "sharded-experts": (
        "mixtral-8x7b", "h100:64", 256, 4096, {"fsdp": 8, "expert": 4, "tensor": 2},
    ),
    "slices": ("llama3-8b", "v5p:4x4x4*2", 256, 4096, {"data": 2, "fsdp": 16, "tensor": 4}),
}  # fmt: skip

# Name -> model, machine, dtype of weights and cache, settings of an engine.
SERVING: dict[str, tuple[str, str, str, Settings]] = {
    "dense": ("llama3-70b", "h100:16", "fp8", {"tensor": 8}),
    "one-chip": ("llama3-8b", "h100:1", "bf16", {"tensor": 1}),
    "pipeline": ("llama3-70b", "h100:8", "bf16", {"tensor": 4, "pipe": 2}),
    "experts": ("mixtral-8x7b", "h100:16", "bf16", {"expert": 8}),
    "whole-experts": ("mixtral-8x7b", "h100:8", "bf16", {"tensor": 8, "expert_tensor": 1}),
    "both": ("mixtral-8x7b", "h100:32", "bf16", {"tensor": 2, "expert": 4, "expert_tensor": 1}),
    "sharded-experts": ("mixtral-8x7b", "h100:8", "bf16", {"tensor": 8}),
    "context": ("llama3-70b", "h100:8", "bf16", {"tensor": 4, "context": 2, "kv": "copied"}),
    "latent-context": (
        "deepseek-v2-lite",
        "h100:4",
        "bf16",
        {"tensor": 2, "context": 2, "kv": "copied"},
    ),
    "split-cache": ("qwen3-30b-a3b", "h100:8", "bf16", {"tensor": 8, "kv": "sequence"}),
    "latent-cache": ("deepseek-v2-lite", "h100:4", "bf16", {"tensor": 4, "kv": "sequence"}),
}


@functools.cache
def training(name: str) -> sw.Plan:
    model, machine, batch, seq, settings = TRAINING[name]
    sizes = {role: n for role, n in settings.items() if role in sw.Mesh().sizes}
    words = {word: value for word, value in settings.items() if word not in sizes}
    work = (sw.model(model), sw.hardware(machine), sw.Train(batch=batch, seq=seq, remat="full"))
    plan = sw.evaluate(*work, sw.Mesh(**sizes), words)
    if name == "sharded-experts":  # the search prefers whole ones
        plan = sw.evaluate(*work, replace(plan.layout, expert_tensor=None))
    return plan


@functools.cache
def serving(name: str, *, disaggregate: bool = False) -> sw.ServingPlan:
    model, machine, dtype, settings = SERVING[name]
    sizes = {role: 1 for role in sw.Mesh().sizes if role != "data"}
    job = sw.Serve(context=4096, weights=dtype, kv=dtype, compute=dtype)
    if disaggregate:
        job = sw.Serve(prompt=3072, output=1024, weights=dtype, kv=dtype, compute=dtype)
    fixed = {**sizes, **settings}
    return sw.plan(sw.model(model), sw.hardware(machine), job, fixed, disaggregate=disaggregate)
