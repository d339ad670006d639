"""Models: the list of presets, and the parameters of a model by part with their formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shardwise import units
from shardwise.models import ModelConfig
from shardwise.models.catalog import Facts
from shardwise.models.count import Counts, parameters
from shardwise.models.weights import PARTS, Weight, layer_weights, outer_weights
from shardwise.report.style import Block, bar, labelled, quiet, strong, table
from shardwise.report.words import percent


def list_blocks(presets: Sequence[Facts]) -> Iterator[Block]:
    """One line per preset."""
    rows = []
    for facts in presets:
        active = ""
        if facts.n_active_parameters != facts.n_parameters:
            active = units.show_count(facts.n_active_parameters)
        row = [
            facts.name,
            units.show_count(facts.n_parameters),
            active,
            f"{facts.n_layers}",
            f"{facts.d_model:,}",
            units.show_bytes(facts.kv_bytes_per_token),
            f"{facts.max_seq:,}" if facts.max_seq else "",
        ]
        rows.append(row)
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
    yield quiet("KV in bf16  ·  any config.json works as well  ·  shardwise models NAME")


def document(config: ModelConfig) -> dict[str, Any]:
    """The sizes of a model, and its parameters by part with their formulas."""
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
    text = f"{config.name}: {counts.total:,} parameters"
    if counts.active != counts.total:
        text += f", {units.show_count(counts.active)} active per token"
    yield strong(f"{text}.")
    yield letters(config)
    rows = []
    for part, n in _by_part(counts).items():
        shares = [percent(n / counts.total), bar(n, counts.total, 12)]
        rows.append([part, formula(config, part), units.show_count(n), *shares])
    yield table(["!part", "formula", ">parameters", ">share", ""], rows)
    yield from unread_keys(config)
    yield quiet(f"type  shardwise models {config.name} --kv  ·  --flops --seq 8192")


def letters(config: ModelConfig) -> Block:
    """The sizes of the letters in formulas, and their source."""
    weights = (*layer_weights(config, config.main_layer), *outer_weights(config))
    sizes: dict[str, int] = {}
    for weight in weights:
        sizes |= zip(weight.dims, weight.shape, strict=True)
    parts = [f"L {config.n_layers}"]
    for letter in sorted(sizes, key=lambda dim: ("DFNKHVE".find(dim) % 8, dim)):
        parts.append(f"{letter} {sizes[letter]:,}")
    if config.is_moe:
        parts.append(f"experts per token {config.experts_per_token}")
    source = config.source or "the given values"
    return labelled([("sizes", "  ".join(parts)), ("from", source)])


def unread_keys(config: ModelConfig) -> Iterator[Block]:
    """The keys of the config.json that were not read."""
    if config.unused_keys:
        yield f"not read, may change counts: {', '.join(config.unused_keys)}"
    if config.ignored_keys:
        yield quiet(
            f"not read, no effect on counts: {len(config.ignored_keys)} keys (--json lists them)"
        )


def _by_part(counts: Counts) -> dict[str, int]:
    return {part: n for part in PARTS if (n := getattr(counts, part))}


def formula(config: ModelConfig, part: str) -> str:
    """The parameters of a part in the book's letters: `80 × (2DKH + 2DNH)`.

    Products of the dims of the part's arrays, times the number of layers of each kind.
    """
    counts: Counter[str] = Counter()
    for group in config.groups:
        weights = _of_part(layer_weights(config, group.layer), part)
        if weights:
            counts[_products(weights) + _other_width(config, weights)] += group.count
    terms = []
    for products, count in counts.items():
        terms.append(f"{count} × ({products})" if " + " in products else f"{count} × {products}")
    outer = _products(_of_part(outer_weights(config), part))
    if outer:
        terms.append(outer)
    return " + ".join(terms)


def _of_part(weights: Iterable[Weight], part: str) -> list[Weight]:
    return [weight for weight in weights if weight.part == part]


def _other_width(config: ModelConfig, weights: Sequence[Weight]) -> str:
    """`, with F 1,408`: the widths F other than that of the most common layer."""
    widths: set[int] = set()
    for weight in weights:
        widths |= {size for dim, size in zip(weight.dims, weight.shape, strict=True) if dim == "F"}
    others = sorted(widths - {config.d_ff})
    if not others:
        return ""
    scope = "some" if config.d_ff in widths else "with"
    return f", {scope} F {', '.join(f'{width:,}' for width in others)}"


def _products(weights: Sequence[Weight]) -> str:
    counts = Counter(_product(weight.dims) for weight in weights)
    return " + ".join(f"{n if n > 1 else ''}{product}" for product, n in counts.items())


def _product(dims: tuple[str, ...]) -> str:
    """The dims in a fixed order, so that DF and FD are the same product."""
    separator = "" if all(len(dim) == 1 for dim in dims) else "·"
    order = "EDNKHF"
    return separator.join(sorted(dims, key=lambda dim: (order.find(dim) % len("EDNKHF*"), dim)))
