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
    """A table with one line per preset."""
    rows = []
    for facts in presets:
        active = ""
        if facts.n_active_parameters != facts.n_parameters:
            active = units.show_count(facts.n_active_parameters)
        max_tokens = ""
        if facts.max_seq:
            max_tokens = f"{facts.max_seq:,}"
        row = [
            facts.name,
            units.show_count(facts.n_parameters),
            active,
            f"{facts.n_layers}",
            f"{facts.d_model:,}",
            units.show_bytes(facts.kv_bytes_per_token),
            max_tokens,
        ]
        rows.append(row)
    headers = [
        "!model",
        ">parameters",
        ">active",
        ">layers",
        ">d_model",
        ">KV a token",
        ">max tokens",
    ]
    yield table(headers, rows)
    yield quiet("KV in bf16  ·  any config.json works as well  ·  shardwise models NAME")


def document(config: ModelConfig) -> dict[str, Any]:
    """The sizes of a model, and its parameters by part with their formulas."""
    counts = parameters(config)
    parts = {}
    for part, n in _by_part(counts).items():
        parts[part] = {"n": n, "share": n / counts.total, "formula": formula(config, part)}
    return {
        **_facts(config),
        "parameters": parts,
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
    """A table of the parameters by part of the model, with formulas and shares."""
    counts = parameters(config)
    text = f"{config.name}: {counts.total:,} parameters"
    if counts.active != counts.total:
        text += f", {units.show_count(counts.active)} active per token"
    yield strong(f"{text}.")
    yield letter_sizes(config)
    rows = []
    for part, n in _by_part(counts).items():
        shares = [percent(n / counts.total), bar(n, counts.total, 12)]
        rows.append([part, formula(config, part), units.show_count(n), *shares])
    yield table(["!part", "formula", ">parameters", ">share", ""], rows)
    yield from unread_keys(config)
    yield quiet(f"type  shardwise models {config.name} --kv  ·  --flops --seq 8192")


def letter_sizes(config: ModelConfig) -> Block:
    """The sizes that the letters of the formulas stand for, and the file they come from."""
    weights = (*layer_weights(config, config.main_layer), *outer_weights(config))
    sizes: dict[str, int] = {}
    for weight in weights:
        sizes |= zip(weight.dims, weight.shape, strict=True)
    texts = [f"L {config.n_layers}"]
    for letter in sorted(sizes, key=_letter_order):
        texts.append(f"{letter} {sizes[letter]:,}")
    if config.is_moe:
        texts.append(f"experts per token {config.experts_per_token}")
    source = config.source or "the given values"
    return labelled([("sizes", "  ".join(texts)), ("from", source)])


def _letter_order(dim: str) -> tuple[int, str]:
    """A sort key: the book's letters first, then other dims by name."""
    return "DFNKHVE".find(dim) % len("DFNKHVE*"), dim


def unread_keys(config: ModelConfig) -> Iterator[Block]:
    """Notes on the keys of the config.json that were not read."""
    if config.unused_keys:
        yield f"not read, may change counts: {', '.join(config.unused_keys)}"
    if config.ignored_keys:
        yield quiet(
            f"not read, no effect on counts: {len(config.ignored_keys)} keys (--json lists them)"
        )


def _by_part(counts: Counts) -> dict[str, int]:
    """Numbers of parameters of the parts that the model has."""
    n_by_part = {}
    for part in PARTS:
        n = getattr(counts, part)
        if n:
            n_by_part[part] = n
    return n_by_part


def formula(config: ModelConfig, part: str) -> str:
    """The number of parameters of a part in the book's letters: `80 × (2DKH + 2DNH)`.

    Each array contributes the product of its dims; layers of the same kind are counted together.
    """
    n_layers: Counter[str] = Counter()  # the products of one layer -> layers
    for group in config.groups:
        weights = _weights_of_part(layer_weights(config, group.layer), part)
        if weights:
            n_layers[_products(weights) + _other_width(config, weights)] += group.count
    terms = []
    for products, count in n_layers.items():
        if " + " in products:
            products = f"({products})"
        terms.append(f"{count} × {products}")
    outer = _products(_weights_of_part(outer_weights(config), part))
    if outer:
        terms.append(outer)
    return " + ".join(terms)


def _weights_of_part(weights: Iterable[Weight], part: str) -> list[Weight]:
    return [weight for weight in weights if weight.part == part]


def _other_width(config: ModelConfig, weights: Sequence[Weight]) -> str:
    """The feed-forward widths F that differ from the model's d_ff: `, with F 1,408`.

    `with` if all of these weights have such a width, `some` if only some of them do.
    """
    widths: set[int] = set()
    for weight in weights:
        for dim, size in zip(weight.dims, weight.shape, strict=True):
            if dim == "F":
                widths.add(size)
    other_widths = sorted(widths - {config.d_ff})
    if not other_widths:
        return ""
    scope = "some" if config.d_ff in widths else "with"
    return f", {scope} F {', '.join(f'{width:,}' for width in other_widths)}"


def _products(weights: Sequence[Weight]) -> str:
    """The sum of the products of the weights' dims, equal ones together: `2DKH + 2DNH`."""
    counts = Counter(_product(weight.dims) for weight in weights)
    terms = []
    for product, count in counts.items():
        terms.append(f"{count}{product}" if count > 1 else product)
    return " + ".join(terms)


def _product(dims: tuple[str, ...]) -> str:
    """The product of dims, in a fixed order of letters, so that DF and FD are equal.

    Dims with names of several letters are separated by `·`.
    """
    separator = ""
    if max(map(len, dims), default=0) > 1:
        separator = "·"
    order = "EDNKHF"
    return separator.join(sorted(dims, key=lambda dim: (order.find(dim) % len("EDNKHF*"), dim)))
