"""What a model costs to run: KV cache by dtype, FLOPs by part."""

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
from shardwise.report.models import kept_out, letters
from shardwise.report.style import Block, bar, quiet, strong, table
from shardwise.report.words import percent


def kv_document(config: ModelConfig, seq: int, dtypes: Sequence[str]) -> dict[str, Any]:
    """Cache bytes by dtype."""
    return {
        "name": config.name,
        "seq": seq,
        "layers": _kv_layers(config),
        "dtypes": {
            dtype: {
                "kv_bytes_per_token": kv_bytes_per_token(config, dtype),
                "kv_cache_bytes": kv_cache_bytes(config, seq, dtype),
            }
            for dtype in dtypes
        },
    }


def _kv_layers(config: ModelConfig) -> list[dict[str, Any]]:
    return [
        {
            "n_layers": n,
            "kv_elements_per_token": kv_elements(attention),
            "window": attention.window,
        }
        for attention, n in config.attentions
    ]


def kv_blocks(config: ModelConfig, seq: int, dtypes: Sequence[str]) -> Iterator[Block]:
    """Bytes of a token and of a sequence, and the layers that stop growing."""
    first = dtypes[0]
    held = units.show_bytes(kv_cache_bytes(config, seq, first))
    yield strong(
        f"{config.name}: {kv_bytes_per_token(config, first):,.0f} bytes of {first} KV cache a "
        f"token, {held} for {seq:,} tokens."
    )
    yield letters(config)
    yield table(
        ["layers", "formula", ">elements a token", "grows"],
        [
            [
                f"{n}",
                _kv_formula(attention),
                f"{kv_elements(attention):,}",
                _window(attention.window, seq),
            ]
            for attention, n in config.attentions
        ]
        + [
            [f"{n}", "state NHM + convolution", f"{state_elements(mamba):,} a sequence", "not"]
            for mamba, n in config.mambas
        ],
    )
    yield table(
        ["dtype", ">a token", f">{seq:,} tokens", ">"],
        [
            [
                dtype,
                units.show_bytes(kv_bytes_per_token(config, dtype)),
                units.show_bytes(kv_cache_bytes(config, seq, dtype)),
                units.show_gib(kv_cache_bytes(config, seq, dtype)),
            ]
            for dtype in dtypes
        ],
    )
    yield from kept_out(config)


def _kv_formula(attention: Attention) -> str:
    if attention.mla:
        return f"latent {attention.mla.kv_lora_rank} + rope {attention.mla.d_rope}"
    return f"2KH = 2 × {attention.n_kv_heads} × {attention.d_head}"


def _window(window: int | None, seq: int) -> str:
    if window is None:
        return "with every token"
    stopped = " (reached)" if seq >= window else ""
    return f"up to {window:,} tokens{stopped}"


def flops_document(config: ModelConfig, seq: int) -> dict[str, Any]:
    """FLOPs of a token by part, forward and training."""
    counts = flops(config, seq)
    parts = _by_part(counts)
    return {
        "name": config.name,
        "seq": seq,
        "forward_flops_per_token": {**parts, "total": counts.forward},
        "training_flops_per_token": {
            **{part: counts.training / counts.forward * n for part, n in parts.items()},
            "total": counts.training,
        },
        "share": {part: n / counts.forward for part, n in parts.items()},
        "training_flops_per_sequence": counts.training * seq,
    }


def _by_part(counts: FlopCounts) -> dict[str, float]:
    parts = ("attention", "scores", "mamba", "scan", "mlp", "moe", "unembedding")
    return {part: float(n) for part in parts if (n := getattr(counts, part))}


def flops_blocks(config: ModelConfig, seq: int) -> Iterator[Block]:
    """FLOPs by part with their shares."""
    counts = flops(config, seq)
    yield strong(
        f"{config.name}: {units.show_count(counts.training)} FLOPs a token to train on sequences "
        f"of {seq:,}, {units.show_count(counts.forward)} forward."
    )
    yield letters(config)
    passes = counts.training / counts.forward
    rows = [
        [
            part,
            _SAID[part],
            units.show_count(n),
            units.show_count(passes * n),
            percent(n / counts.forward),
            bar(n, counts.forward, 12),
        ]
        for part, n in _by_part(counts).items()
    ]
    total = [units.show_count(counts.forward), units.show_count(counts.training), "100 %", ""]
    yield table(["part", "", ">forward", ">training", ">share", ""], [*rows, ["all", "", *total]])
    yield quiet("causal attention at half the square, no recompute: the FLOPs of MFU")


_SAID = {
    "attention": "projections, 2 per parameter",
    "scores": "QK and AV",
    "mamba": "projections, 2 per parameter",
    "scan": "2(KM + NH)C/2 + 4NHM, chunks of C",
    "mlp": "2 per parameter",
    "moe": "2 per parameter used",
    "unembedding": "2DV",
}
