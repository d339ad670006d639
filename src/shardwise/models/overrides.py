"""Overrides of model fields, as in `llama3-70b,n_kv_heads=1`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from shardwise.errors import BadShape, BadUnit, ShardwiseError, UnknownName, nearest
from shardwise.models.checks import short
from shardwise.models.config import Layer, LayerGroup, Moe
from shardwise.models.keys import MAX_LAYERS
from shardwise.models.model import ModelConfig
from shardwise.models.stack import respread
from shardwise.units import parse_whole

_MODEL = ("d_model", "vocab", "max_seq", "n_positions")
_ATTENTION = ("n_heads", "n_kv_heads", "d_head", "window")
_MOE = ("n_experts", "experts_per_token", "d_ff_shared", "n_shared_experts")
_FLAGS = ("tied_embeddings",)
FIELDS = ("n_layers", "d_ff", *_MODEL, *_ATTENTION, *_MOE, *_FLAGS)


def apply(config: ModelConfig, changes: Sequence[str]) -> ModelConfig:
    """Apply overrides, `field=value`, to all layers that have the field.

    In a model with experts `d_ff` is the width of an expert, as `ModelConfig.d_ff` is. `n_layers`
    keeps the proportions of the kinds of layers. All problems are reported together.

    Raises:
        UnknownName: The field does not exist.
        BadUnit: The value is not valid for its field, or the model does not have the field; also
            if there are several problems of any kind.
        BadShape: The numbers do not describe a possible model.
    """
    values, problems = _parse(config, changes)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise BadUnit(*(line for problem in problems for line in problem.problems))
    if not values:
        return config
    return _override_model(config, values, ",".join(changes))


def _parse(
    config: ModelConfig, changes: Sequence[str]
) -> tuple[dict[str, Any], list[ShardwiseError]]:
    values: dict[str, Any] = {}
    problems: list[ShardwiseError] = []
    for change in changes:
        field, equals, text = map(str.strip, change.partition("="))
        try:
            if not equals:
                raise BadUnit(
                    f'override "{change}" of {config.name} has no "=". Write FIELD=VALUE, as '
                    f"n_kv_heads=8. {nearest(field, FIELDS)}"
                )
            _check_field(config, field, values)
            if field in _FLAGS:
                values[field] = _flag(field, text)
            else:
                values[field] = parse_whole(text, field)
        except ShardwiseError as error:
            problems.append(error)
    return values, problems


def _check_field(config: ModelConfig, field: str, values: dict[str, Any]) -> None:
    if field not in FIELDS:
        raise UnknownName("model field", field[:80], FIELDS)
    if field in values:
        raise BadUnit(f"{field} of {config.name} is given twice.")
    attentions = [attention for attention, _ in config.attentions]
    if field in _MOE and not config.is_moe:
        raise BadUnit(f"{field}: {config.name} has no experts.")
    if field == "window" and not any(attention.window for attention in attentions):
        raise BadUnit(f"window: no layer of {config.name} has local attention.")
    if field in ("n_kv_heads", "d_head") and any(attention.mla for attention in attentions):
        raise BadUnit(f"{field}: {config.name} rebuilds keys and values from a latent (MLA).")
    if field in _ATTENTION and not attentions:
        raise BadUnit(f"{field}: {config.name} has no attention.")
    if field == "n_positions" and not config.n_positions:
        raise BadUnit(f"n_positions: {config.name} has no learned positions.")


def _flag(field: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadUnit(f'{field} "{text}" is neither true nor false.')
    return text.lower() == "true"


def _override_model(config: ModelConfig, values: dict[str, Any], suffix: str) -> ModelConfig:
    counts = _layer_counts(config, values.get("n_layers", config.n_layers))
    groups = []
    for group, count in zip(config.groups, counts, strict=True):
        groups.append(
            LayerGroup(layer=_override_layer(group.layer, values, config.is_moe), count=count)
        )
    return dataclasses.replace(
        config,
        name=f"{config.name},{suffix}",
        groups=tuple(groups),
        order=respread(config.order, counts),
        **_select(values, (*_MODEL, *_FLAGS)),
    )


def _select(values: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    return {field: value for field, value in values.items() if field in fields}


def _override_layer(layer: Layer, values: dict[str, Any], is_moe: bool) -> Layer:
    attention = layer.attention
    if attention:
        changes = _select(values, _ATTENTION)
        if attention.window is None:
            changes.pop("window", None)
        if attention.mla and "n_heads" in changes:
            changes["n_kv_heads"] = changes["n_heads"]
        attention = dataclasses.replace(attention, **changes)
    ffn = layer.ffn
    if isinstance(ffn, Moe):
        ffn = dataclasses.replace(ffn, **_select(values, ("d_ff", *_MOE)))
    elif ffn and not is_moe:
        ffn = dataclasses.replace(ffn, **_select(values, ("d_ff",)))
    return dataclasses.replace(layer, attention=attention, ffn=ffn)


def _layer_counts(config: ModelConfig, n_layers: int) -> list[int]:
    """The number of layers of each kind in a model of `n_layers`.

    At least one of each, otherwise in proportion to the counts of `config`. Layers that remain
    after rounding down go to the kinds with the largest remainders.
    """
    groups = config.groups
    if n_layers < len(groups):
        raise BadShape(
            f"n_layers {n_layers} of {config.name} is below {len(groups)}, its kinds of layers."
        )
    if n_layers > MAX_LAYERS:
        raise BadShape(f"n_layers {short(n_layers)} of {config.name} is above {MAX_LAYERS:,}.")
    spare = n_layers - len(groups)
    total = max(1, config.n_layers - len(groups))
    shares = [spare * (group.count - 1) for group in groups]
    counts = [1 + share // total for share in shares]
    by_remainder = sorted(range(len(groups)), key=lambda i: shares[i] % total, reverse=True)
    for i in by_remainder[: n_layers - sum(counts)]:
        counts[i] += 1
    return counts
