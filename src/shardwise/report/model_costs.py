"""What a model costs: bytes of its KV cache by dtype, and FLOPs per token by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardwise import units
from shardwise.models import Attention, ModelConfig
from shardwise.models.count import (
    FlopCounts,
    flops,
    kv_bytes_per_token,
    kv_cache_bytes,
    kv_elements,
    state_elements,
)
from shardwise.report.models import letter_sizes, unread_keys
from shardwise.report.style import Block, bar, quiet, strong, table
from shardwise.report.words import percent


def kv_document(config: ModelConfig, seq: int, dtypes: Sequence[str]) -> dict[str, Any]:
    """Bytes of the KV cache by dtype, for a token and for a sequence of `seq` tokens."""
    bytes_by_dtype = {}
    for dtype in dtypes:
        bytes_by_dtype[dtype] = {
            "kv_bytes_per_token": kv_bytes_per_token(config, dtype),
            "kv_cache_bytes": kv_cache_bytes(config, seq, dtype),
        }
    return {
        "name": config.name,
        "seq": seq,
        "layers": _kv_layers(config),
        "dtypes": bytes_by_dtype,
    }


def _kv_layers(config: ModelConfig) -> list[dict[str, Any]]:
    """One entry for each kind of attention layer of the model."""
    kinds = []
    for attention, n_layers in config.attentions:
        kind = {
            "n_layers": n_layers,
            "kv_elements_per_token": kv_elements(attention),
            "window": attention.window,
        }
        kinds.append(kind)
    return kinds


def kv_blocks(config: ModelConfig, seq: int, dtypes: Sequence[str]) -> Iterator[Block]:
    """Tables of the KV cache by kind of layer and by dtype, for `seq` tokens.

    The caches of sliding-window and state-space layers stop growing; the first table says where.
    """
    dtype = dtypes[0]
    cache = units.show_bytes(kv_cache_bytes(config, seq, dtype))
    yield strong(
        f"{config.name}: {kv_bytes_per_token(config, dtype):,.0f} bytes of {dtype} KV cache a "
        f"token, {cache} for {seq:,} tokens."
    )
    yield letter_sizes(config)
    rows = []
    for attention, n_layers in config.attentions:
        elements = f"{kv_elements(attention):,}"
        rows.append([f"{n_layers}", _kv_formula(attention), elements, _window(attention, seq)])
    for mamba, n_layers in config.mambas:
        elements = f"{state_elements(mamba):,} a sequence"
        rows.append([f"{n_layers}", "state NHM + convolution", elements, "never"])
    yield table(["layers", "formula", ">elements a token", "grows"], rows)
    rows = []
    for dtype in dtypes:
        n_bytes = kv_cache_bytes(config, seq, dtype)
        token = units.show_bytes(kv_bytes_per_token(config, dtype))
        rows.append([dtype, token, units.show_bytes(n_bytes), units.show_gib(n_bytes)])
    yield table(["dtype", ">a token", f">{seq:,} tokens", ">"], rows)
    yield from unread_keys(config)


def _kv_formula(attention: Attention) -> str:
    if attention.mla:
        return f"latent {attention.mla.kv_lora_rank} + rope {attention.mla.d_rope}"
    return f"2KH = 2 × {attention.n_kv_heads} × {attention.d_head}"


def _window(attention: Attention, seq: int) -> str:
    """How the cache of a layer grows; `(reached)` if `seq` tokens fill its window."""
    window = attention.window
    if window is None:
        return "with every token"
    reached = " (reached)" if seq >= window else ""
    return f"up to {window:,} tokens{reached}"


def flops_document(config: ModelConfig, seq: int) -> dict[str, Any]:
    """FLOPs per token by part of the model, for a forward pass and for training."""
    counts = flops(config, seq)
    parts = _by_part(counts)
    training = {}
    shares = {}
    for part, n_flops in parts.items():
        training[part] = counts.training / counts.forward * n_flops
        shares[part] = n_flops / counts.forward
    return {
        "name": config.name,
        "seq": seq,
        "forward_flops_per_token": {**parts, "total": counts.forward},
        "training_flops_per_token": {**training, "total": counts.training},
        "share": shares,
        "training_flops_per_sequence": counts.training * seq,
        "training_flops_per_token_by_convention": {
            name: n_flops for name, (n_flops, _) in _conventions(config, seq).items()
        },
    }


def _conventions(config: ModelConfig, seq: int) -> dict[str, tuple[float, str]]:
    """Way to count training FLOPs per token -> the count, and who counts so."""
    causal = flops(config, seq)
    square = flops(config, seq, causal=False)
    return {
        "model, causal": (causal.training, "MFU of every plan here, and of the book"),
        "model, full square": (square.training, "PaLM's MFU, nanoGPT"),
        "hardware, causal": (causal.training + causal.forward, "HFU with full remat"),
        "hardware, full square": (square.training + square.forward, "the same, masks counted"),
        "6 per parameter": (
            causal.training - 3 * (causal.scores + causal.scan),
            "6ND, without attention",
        ),
    }


def _by_part(counts: FlopCounts) -> dict[str, float]:
    """Forward FLOPs of the parts that the model has."""
    n_flops_by_part = {}
    for part in _FORMULAS:
        n_flops = float(getattr(counts, part))
        if n_flops:
            n_flops_by_part[part] = n_flops
    return n_flops_by_part


def flops_blocks(config: ModelConfig, seq: int) -> Iterator[Block]:
    """A table of FLOPs per token by part, with shares of the total."""
    counts = flops(config, seq)
    yield strong(
        f"{config.name}: {units.show_count(counts.training)} FLOPs a token to train on sequences "
        f"of {seq:,}, {units.show_count(counts.forward)} forward."
    )
    yield letter_sizes(config)
    training_factor = counts.training / counts.forward
    rows = []
    for part, n_flops in _by_part(counts).items():
        row = [
            part,
            _FORMULAS[part],
            units.show_count(n_flops),
            units.show_count(training_factor * n_flops),
            percent(n_flops / counts.forward),
            bar(n_flops, counts.forward, 12),
        ]
        rows.append(row)
    total = [units.show_count(counts.forward), units.show_count(counts.training), "100 %", ""]
    rows.append(["all", "", *total])
    yield table(["part", "", ">forward", ">training", ">share", ""], rows)
    rows = []
    for name, (n_flops, users) in _conventions(config, seq).items():
        ratio = n_flops / counts.training
        rows.append([name, units.show_count(n_flops), f"×{ratio:.2f}", users])
    yield ""
    yield table(["convention", ">training", ">", "used for"], rows)
    yield quiet("above: model, causal. Full square counts masked scores, hardware the recompute")


# Part of the model, a field of FlopCounts -> what its FLOPs are.
_FORMULAS = {
    "attention": "projections, 2 per parameter",
    "scores": "QK and AV",
    "mamba": "projections, 2 per parameter",
    "scan": "2(KM + NH)C/2 + 4NHM, chunks of C",
    "mlp": "2 per parameter",
    "moe": "2 per parameter used",
    "unembedding": "2DV",
}
