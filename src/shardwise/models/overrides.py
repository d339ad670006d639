"""`llama3-70b,n_kv_heads=1`: the same model with fields changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from shardwise.errors import BadShape, BadUnit, ShardwiseError, UnknownName, nearest
from shardwise.models.checks import short
from shardwise.models.config import Layer, LayerGroup, Moe
from shardwise.models.keys import MOST_LAYERS
from shardwise.models.model import ModelConfig
from shardwise.models.stack import respread
from shardwise.units import parse_whole

_MODEL = ("d_model", "vocab", "max_seq", "n_positions")
_ATTENTION = ("n_heads", "n_kv_heads", "d_head", "window")
_MOE = ("n_experts", "experts_per_token", "d_ff_shared", "n_shared_experts")
_FLAGS = ("tied_embeddings",)
FIELDS = ("n_layers", "d_ff", *_MODEL, *_ATTENTION, *_MOE, *_FLAGS)


def apply(config: ModelConfig, changes: Sequence[str]) -> ModelConfig:
    """The config with `field=value` changes, in all layers that have the field.

    `d_ff` is the width of an expert in a model with experts, as the property is. `n_layers` keeps
    the proportion of the kinds of layers. All problems are raised together.

    Raises:
        UnknownName: A field that no model has.
        BadUnit: A value that is not one of its field, or a field that this model does not have.
        BadShape: Numbers that no model can have.
    """
    values, problems = _parse(config, changes)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise BadUnit(*(line for problem in problems for line in problem.problems))
    return _replace(config, values, ",".join(changes)) if values else config


def _parse(
    config: ModelConfig, changes: Sequence[str]
) -> tuple[dict[str, Any], list[ShardwiseError]]:
    values: dict[str, Any] = {}
    problems: list[ShardwiseError] = []
    for change in changes:
        field, equals, text = (part.strip() for part in change.partition("="))
        try:
            if not equals:
                raise BadUnit(
                    f'override "{change}" of {config.name} has no "=". Write FIELD=VALUE, as '
                    f"n_kv_heads=8. {nearest(field, FIELDS)}"
                )
            _refuse_unknown(config, field, values)
            values[field] = _flag(field, text) if field in _FLAGS else parse_whole(text, field)
        except ShardwiseError as error:
            problems.append(error)
    return values, problems


def _refuse_unknown(config: ModelConfig, field: str, values: dict[str, Any]) -> None:
    if field not in FIELDS:
        raise UnknownName("model field", field[:80], FIELDS)
    if field in values:
        raise BadUnit(f"{field} of {config.name} is given twice.")
    attentions = [attention for attention, _ in config.attentions]
    if field in _MOE and not config.is_moe:
        raise BadUnit(f"{field}: {config.name} has no experts.")
    if field == "window" and all(a.window is None for a in attentions):
        raise BadUnit(f"window: no layer of {config.name} has local attention.")
    if field in ("n_kv_heads", "d_head") and any(a.mla for a in attentions):
        raise BadUnit(f"{field}: {config.name} rebuilds keys and values from a latent (MLA).")
    if field in _ATTENTION and not attentions:
        raise BadUnit(f"{field}: {config.name} has no attention.")
    if field == "n_positions" and not config.n_positions:
        raise BadUnit(f"n_positions: {config.name} has no learned positions.")


def _flag(field: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadUnit(f'{field} "{text}" is neither true nor false.')
    return text.lower() == "true"


def _replace(config: ModelConfig, values: dict[str, Any], said: str) -> ModelConfig:
    counts = _counts(config, values.get("n_layers", config.n_layers))
    outer = {k: values[k] for k in (*_MODEL, *_FLAGS) if k in values}
    groups = tuple(
        LayerGroup(layer=_layer(group.layer, values, config.is_moe), count=count)
        for group, count in zip(config.groups, counts, strict=True)
    )
    order = respread(config.order, counts)
    name = f"{config.name},{said}"
    return dataclasses.replace(config, name=name, groups=groups, order=order, **outer)


def _layer(layer: Layer, values: dict[str, Any], is_moe: bool) -> Layer:
    attention, ffn = layer.attention, layer.ffn
    if attention:
        wanted = {k: v for k, v in values.items() if k in _ATTENTION}
        if attention.window is None:
            wanted.pop("window", None)
        if attention.mla and "n_heads" in wanted:
            wanted["n_kv_heads"] = wanted["n_heads"]
        attention = dataclasses.replace(attention, **wanted)
    if ffn:
        widths = {k: v for k, v in values.items() if k in _MOE and isinstance(ffn, Moe)}
        if "d_ff" in values and isinstance(ffn, Moe) == is_moe:
            widths["d_ff"] = values["d_ff"]
        ffn = dataclasses.replace(ffn, **widths)
    return dataclasses.replace(layer, attention=attention, ffn=ffn)


def _counts(config: ModelConfig, n_layers: int) -> list[int]:
    """Layers of each kind out of `n_layers`: at least one, in proportion, largest remainders."""
    groups = config.groups
    if n_layers < len(groups):
        raise BadShape(
            f"n_layers {n_layers} of {config.name} is below {len(groups)}, its kinds of layers."
        )
    if n_layers > MOST_LAYERS:
        raise BadShape(f"n_layers {short(n_layers)} of {config.name} is above {MOST_LAYERS:,}.")
    spare, total = n_layers - len(groups), max(1, sum(g.count - 1 for g in groups))
    counts = [1 + spare * (g.count - 1) // total for g in groups]
    by_remainder = sorted(
        range(len(groups)), key=lambda i: spare * (groups[i].count - 1) % total, reverse=True
    )
    for i in by_remainder[: n_layers - sum(counts)]:
        counts[i] += 1
    return counts
