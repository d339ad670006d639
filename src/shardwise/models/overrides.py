"""`llama3-70b,n_kv_heads=1`: the same model with fields changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from shardwise.errors import BadShape, BadUnit, ShardwiseError, UnknownName, nearest
from shardwise.models.config import Layer, LayerGroup, Moe
from shardwise.models.model import ModelConfig
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
    """
    values, problems = _parse(config, changes)
    if problems:
        kinds = {type(p) for p in problems}
        kind = kinds.pop() if len(kinds) == 1 else BadUnit
        error = kind.__new__(kind)
        ShardwiseError.__init__(error, *(line for p in problems for line in p.problems))
        raise error
    return _replace(config, values) if values else config


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
            if field not in FIELDS:
                raise UnknownName("model field", field, FIELDS)
            if field in _MOE and not config.is_moe:
                raise BadUnit(f"{field}: {config.name} has no experts.")
            values[field] = _flag(field, text) if field in _FLAGS else parse_whole(text, field)
        except ShardwiseError as error:
            problems.append(error)
    return values, problems


def _flag(field: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadUnit(f'{field} "{text}" is neither true nor false.')
    return text.lower() == "true"


def _replace(config: ModelConfig, values: dict[str, Any]) -> ModelConfig:
    counts = _counts(config, values.pop("n_layers", config.n_layers))
    outer = {k: values.pop(k) for k in (*_MODEL, *_FLAGS) if k in values}
    groups = tuple(
        LayerGroup(layer=_layer(group.layer, values, config.is_moe), count=count)
        for group, count in zip(config.groups, counts, strict=True)
    )
    changed = ",".join(f"{k}={v}" for k, v in (outer | values).items())
    if counts != [g.count for g in config.groups]:
        changed = f"n_layers={sum(counts)}{changed and ','}{changed}"
    return dataclasses.replace(config, name=f"{config.name},{changed}", groups=groups, **outer)


def _layer(layer: Layer, values: dict[str, Any], is_moe: bool) -> Layer:
    wanted = {k: v for k, v in values.items() if k in _ATTENTION}
    if layer.attention.window is None:
        wanted.pop("window", None)
    ffn = {k: v for k, v in values.items() if k in _MOE and isinstance(layer.ffn, Moe)}
    if "d_ff" in values and isinstance(layer.ffn, Moe) == is_moe:
        ffn["d_ff"] = values["d_ff"]
    return dataclasses.replace(
        layer,
        attention=dataclasses.replace(layer.attention, **wanted),
        ffn=dataclasses.replace(layer.ffn, **ffn),
    )


def _counts(config: ModelConfig, n_layers: int) -> list[int]:
    """Layers of each kind out of `n_layers`: in proportion, at least one, largest remainders."""
    groups = config.groups
    if n_layers < len(groups):
        raise BadShape(
            f"n_layers {n_layers} of {config.name} is below {len(groups)}, its kinds of layers."
        )
    spare = n_layers - len(groups)
    total = sum(g.count - 1 for g in groups) or 1
    shares = [spare * (g.count - 1) / total for g in groups]
    counts = [1 + int(share) for share in shares]
    by_remainder = sorted(range(len(groups)), key=lambda i: int(shares[i]) - shares[i])
    for i in by_remainder[: n_layers - sum(counts)]:
        counts[i] += 1
    return counts
