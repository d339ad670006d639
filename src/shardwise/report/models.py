"""Models: the list, parameters by part with their formulas, cache bytes, FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from shardwise import units
from shardwise.models import ModelConfig
from shardwise.models.catalog import Facts
from shardwise.models.count import Counts, parameters
from shardwise.models.weights import PARTS, Weight, layer_weights, outer_weights
from shardwise.report.style import Block, bar, labelled, quiet, strong, table
from shardwise.report.words import percent


def list_blocks(found: Sequence[Facts]) -> Iterator[Block]:
    """One line for each preset."""
    rows = [
        [
            facts.name,
            units.show_count(facts.n_parameters),
            ""
            if facts.n_active_parameters == facts.n_parameters
            else units.show_count(facts.n_active_parameters),
            f"{facts.n_layers}",
            f"{facts.d_model:,}",
            units.show_bytes(facts.kv_bytes_per_token),
            f"{facts.max_seq:,}" if facts.max_seq else "",
        ]
        for facts in found
    ]
    heads = [
        "!model",
        ">parameters",
        ">active",
        ">layers",
        ">d_model",
        ">KV a token",
        ">max tokens",
    ]
    yield table(heads, rows)
    yield quiet("KV in bf16  ·  a path to any config.json works too  ·  shardwise models NAME")


def document(config: ModelConfig) -> dict[str, Any]:
    """A model's sizes and its parameters by part with their formulas."""
    counts = parameters(config)
    return {
        **_facts(config),
        "parameters": {
            part: {"n": n, "share": n / counts.total, "formula": formula(config, part)}
            for part, n in _by_part(counts).items()
        },
        "n_parameters": counts.total,
        "n_active_parameters": counts.active,
        "n_matmul_parameters": counts.matmul,
    }


def _facts(config: ModelConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "family": config.family,
        "source": config.source,
        "n_layers": config.n_layers,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "n_heads": config.n_heads,
        "n_kv_heads": config.n_kv_heads,
        "d_head": config.d_head,
        "vocab": config.vocab,
        "n_experts": config.n_experts,
        "experts_per_token": config.experts_per_token,
        "max_seq": config.max_seq,
        "unused_keys": config.unused_keys,
        "ignored_keys": config.ignored_keys,
    }


def blocks(config: ModelConfig) -> Iterator[Block]:
    """Parameters by part."""
    counts = parameters(config)
    active = counts.active
    used = "" if active == counts.total else f", {units.show_count(active)} used by a token"
    yield strong(f"{config.name}: {counts.total:,} parameters{used}.")
    yield letters(config)
    yield table(
        ["!part", "formula", ">parameters", ">share", ""],
        [
            [
                part,
                formula(config, part),
                units.show_count(n),
                percent(n / counts.total),
                bar(n, counts.total, 12),
            ]
            for part, n in _by_part(counts).items()
        ],
    )
    yield from kept_out(config)
    yield quiet(f"type  shardwise models {config.name} --kv  ·  --flops --seq 8192")


def letters(config: ModelConfig) -> Block:
    """The sizes behind the letters, and where they were read."""
    weights = (*layer_weights(config, config.main_layer), *outer_weights(config))
    sizes = {dim: n for weight in weights for dim, n in zip(weight.dims, weight.shape, strict=True)}
    ordered = sorted(sizes, key=lambda d: ("DFNKHVE".find(d) % 8, d))
    shown = "  ".join(f"{letter} {sizes[letter]:,}" for letter in ordered)
    routed = f"  experts per token {config.experts_per_token}" if config.is_moe else ""
    source = config.source or "the given values"
    return labelled([("sizes", f"L {config.n_layers}  {shown}{routed}"), ("from", source)])


def kept_out(config: ModelConfig) -> Iterator[Block]:
    """Keys of the config.json that were not read."""
    if config.unused_keys:
        yield f"not read, may matter: {', '.join(config.unused_keys)}"
    if config.ignored_keys:
        yield quiet(
            f"not read, change no count: {len(config.ignored_keys)} keys (--json lists them)"
        )


def _by_part(counts: Counts) -> dict[str, int]:
    return {part: n for part in PARTS if (n := getattr(counts, part))}


def formula(config: ModelConfig, part: str) -> str:
    """The parameters of a part in the book's letters: `80 × (2DKH + 2DNH)`.

    Every product of dims of the part's arrays, for each kind of layer as often as it occurs.
    """
    terms: Counter[str] = Counter()
    for group in config.groups:
        weights = [w for w in layer_weights(config, group.layer) if w.part == part]
        if weights:
            terms[_products(weights) + _other_width(config, weights)] += group.count
    shown = [
        f"{count} × ({sums})" if " + " in sums else f"{count} × {sums}"
        for sums, count in terms.items()
    ]
    outer = _products([w for w in outer_weights(config) if w.part == part])
    return " + ".join([*shown, outer] if outer else shown)


def _other_width(config: ModelConfig, weights: Sequence[Weight]) -> str:
    """The widths F that are not the one of the most common layer."""
    widths = {n for w in weights for d, n in zip(w.dims, w.shape, strict=True) if d == "F"}
    others = sorted(widths - {config.d_ff})
    listed = ", ".join(f"{n:,}" for n in others)
    return f", {'some' if config.d_ff in widths else 'with'} F {listed}" if others else ""


def _products(weights: Sequence[Weight]) -> str:
    found = Counter(_product(weight.dims) for weight in weights)
    return " + ".join(name if n == 1 else f"{n}{name}" for name, n in found.items())


def _product(dims: tuple[str, ...]) -> str:
    """The dims in one order, so that DF and FD are the same product."""
    joint = "" if all(len(dim) == 1 for dim in dims) else "·"
    order = "EDNKHF"
    return joint.join(sorted(dims, key=lambda d: (order.find(d) % len("EDNKHF*"), d)))
