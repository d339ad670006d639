"""The Llama of `bench/train.py` in PyTorch, as one writes it there to be fast on a CPU.

Weights come from the other side as a file, so that both begin with the same loss. torch.compile
makes one graph of forward and backward pass, attention is scaled_dot_product_attention, AdamW the
fused one. Under bf16, weights and moments stay in fp32 and products are in bf16 (autocast).
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BETAS, DECAY, CLIP = (0.9, 0.95), 0.1, 1.0


class Block(nn.Module):
    """One layer: x_BTD in and out."""

    def __init__(self, D: int, F_: int, n_heads: int, eps: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(D, eps), nn.RMSNorm(D, eps)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.gate_up = nn.Linear(D, 2 * F_, bias=False)
        self.down = nn.Linear(F_, D, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        B, T, D = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(B, T, 3, self.n_heads, -1).transpose(1, 3)
        q, k, v = qkv.unbind(2)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(B, T, D))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """Mean loss of tokens and targets [B, T]."""

    def __init__(self, about: dict[str, Any]) -> None:
        super().__init__()
        D, V, eps = about["d_model"], about["vocab"], about["eps"]
        self.embedding = nn.Embedding(V, D)
        layers = range(about["n_layers"])
        self.layers = nn.ModuleList(Block(D, about["d_ff"], about["n_heads"], eps) for _ in layers)
        self.norm, self.unembedding = nn.RMSNorm(D, eps), nn.Linear(D, V, bias=False)
        half = D // about["n_heads"] // 2
        radians = about["theta"] ** (-torch.arange(half) / half)
        angles = torch.arange(about["seq"])[:, None] * radians
        self.register_buffer("cos", torch.cos(angles).repeat(1, 2))
        self.register_buffer("sin", torch.sin(angles).repeat(1, 2))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.unembedding(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions in fp32: the first half of the dims against the second."""
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def loaded(about: dict[str, Any], folder: Path) -> Llama:
    """The model with the weights of the other side."""
    model, held = Llama(about), np.load(folder / "weights.npz")

    def put(into: torch.Tensor, value: np.ndarray[Any, Any]) -> None:
        with torch.no_grad():
            into.copy_(torch.from_numpy(np.ascontiguousarray(value)).reshape(into.shape))

    put(model.embedding.weight, held["embedding"])
    put(model.unembedding.weight, held["unembedding"].T)
    put(model.norm.weight, held["final_norm"])
    D = about["d_model"]
    for i, layer in enumerate(model.layers):
        qkv = [held[f"w{n}"][i].reshape(D, -1).T for n in "qkv"]
        put(layer.qkv.weight, np.concatenate(qkv))
        put(layer.out.weight, held["wo"][i].reshape(-1, D).T)
        put(layer.gate_up.weight, np.concatenate([held[f"w_{n}"][i].T for n in ("gate", "up")]))
        put(layer.down.weight, held["w_down"][i].T)
        put(layer.attention_norm.weight, held["attention_norm"][i])
        put(layer.ffn_norm.weight, held["ffn_norm"][i])
    return model


class Trainer:
    """Compiled steps on one batch."""

    def __init__(self, about: dict[str, Any], folder: Path) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        self.model = loaded(about, folder)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=about["rate"], betas=BETAS, weight_decay=0.0, fused=True
        )
        held = np.load(folder / "batch.npz")
        self.batch = [torch.from_numpy(held[n]).long() for n in ("tokens", "targets")]
        self.narrow = about["dtype"] == "bf16"
        self.loss = torch.compile(self.model)

    def step(self) -> float:
        """One step; the loss before it."""
        wide = contextlib.nullcontext()
        with torch.autocast("cpu", torch.bfloat16) if self.narrow else wide:
            loss = self.loss(*self.batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def peak(dtype: str, size: int, seconds: float) -> float:
    """FLOP/s of the best of some products [n,n] by [n,n]."""
    x = torch.ones((size, size), dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    torch.mm(x, x)
    best, end = 1e9, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(x, x)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
