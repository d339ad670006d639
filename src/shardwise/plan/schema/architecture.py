"""A model inside a plan: plain data, and back."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from shardwise.errors import BadFile
from shardwise.models import Norm, Segment, count
from shardwise.models.config import Attention, Layer, LayerGroup, Mamba, Mlp, Moe
from shardwise.models.model import ModelConfig
from shardwise.plan.schema.common import PlannedModel

T = TypeVar("T")


def planned_model(model: ModelConfig) -> PlannedModel:
    """The model of a plan."""
    counts = count.parameters(model)
    return PlannedModel(
        name=model.name,
        source=model.source,
        family=model.family,
        n_parameters=counts.total,
        n_active_parameters=counts.active,
        n_layers=model.n_layers,
        d_model=model.d_model,
        d_ff=model.d_ff,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        d_head=model.d_head,
        vocab=model.vocab,
        n_experts=model.n_experts,
        experts_per_token=model.experts_per_token,
        architecture=written(model),
    )


def written(value: Any) -> Any:
    """A model as plain data of JSON; fields at their default are left out.

    So a default is part of the format: changing one changes what kept plans say.
    """
    if is_dataclass(value):
        held = {f.name: getattr(value, f.name) for f in fields(value) if not _at_default(value, f)}
        return {name: written(part) for name, part in held.items()}
    return [written(part) for part in value] if isinstance(value, tuple) else value


def _at_default(value: Any, field: Any) -> bool:
    return field.default is not MISSING and getattr(value, field.name) == field.default


def model_of(data: dict[str, Any]) -> ModelConfig:
    """The model of a plan; fields that are not there have their default.

    Whether a layer's block is dense or routed, only its fields say.

    Raises:
        BadFile: it is not a model.
    """
    try:
        groups = tuple(
            LayerGroup(layer=_layer(group["layer"]), count=group["count"])
            for group in data["groups"]
        )
        known = {f.name for f in fields(ModelConfig)} - {"groups"}
        rest = {name: value for name, value in data.items() if name in known}
        for name in ("unused_keys", "ignored_keys"):
            rest[name] = tuple(rest.get(name, ()))
        rest["order"] = _convert(rest.get("order", ()), tuple[Segment, ...])
        if "norm" in rest:
            rest["norm"] = _convert(rest["norm"], Norm)
        return ModelConfig(groups=groups, **rest)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"the plan's architecture is not a model: {error!r}.") from None


def _layer(data: dict[str, Any]) -> Layer:
    made = dict(data)
    kinds: dict[str, type[Any]] = {"attention": Attention, "mamba": Mamba}
    kinds["ffn"] = Moe if "n_experts" in (data.get("ffn") or ()) else Mlp
    for name, kind in kinds.items():
        if data.get(name) is not None:
            made[name] = _convert(data[name], kind)
    return Layer(**made)


def _convert(data: Any, kind: type[T]) -> T:
    import msgspec

    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise BadFile(f"the plan's architecture: {error}.") from None
