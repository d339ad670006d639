"""The model in a plan: its sizes, and its architecture as JSON data, written and read."""

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
    """The entry of a model in a plan."""
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
        architecture=plain_data(model),
    )


def plain_data(value: Any) -> Any:
    """Convert a model to dicts and lists for JSON, leaving out fields that have their default.

    The defaults are therefore part of the format: changing one changes what saved plans mean.
    """
    if isinstance(value, tuple):
        return [plain_data(element) for element in value]
    if not is_dataclass(value):
        return value
    data = {}
    for field in fields(value):
        content = getattr(value, field.name)
        if field.default is MISSING or content != field.default:
            data[field.name] = plain_data(content)
    return data


def model_of(data: dict[str, Any]) -> ModelConfig:
    """Read a model from the data that `plain_data` wrote; missing fields get their default.

    A feed-forward block with the field `n_experts` becomes a `Moe`, any other an `Mlp`.

    Raises:
        BadFile: the data do not describe a model.
    """
    try:
        groups = tuple(
            LayerGroup(layer=_layer(group["layer"]), count=group["count"])
            for group in data["groups"]
        )
        names = {field.name for field in fields(ModelConfig)} - {"groups"}
        values = {name: value for name, value in data.items() if name in names}
        for name in ("unused_keys", "ignored_keys"):
            values[name] = tuple(values.get(name, ()))
        values["order"] = _convert(values.get("order", ()), tuple[Segment, ...])
        if "norm" in values:
            values["norm"] = _convert(values["norm"], Norm)
        return ModelConfig(groups=groups, **values)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"the plan's architecture is not a model: {error!r}.") from None


def _layer(data: dict[str, Any]) -> Layer:
    blocks = dict(data)
    kinds: dict[str, type[Any]] = {"attention": Attention, "mamba": Mamba, "ffn": Mlp}
    if "n_experts" in (data.get("ffn") or ()):
        kinds["ffn"] = Moe
    for name, kind in kinds.items():
        if data.get(name) is not None:
            blocks[name] = _convert(data[name], kind)
    return Layer(**blocks)


def _convert(data: Any, kind: type[T]) -> T:
    import msgspec

    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise BadFile(f"the plan's architecture: {error}.") from None
