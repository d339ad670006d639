"""The model in a plan: its sizes, and its architecture as JSON data, written and read."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from shardwise.errors import BadFile
from shardwise.models import count
from shardwise.models.config import Layer, LayerGroup, Mlp, Moe
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
    groups = data.get("groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise BadFile("groups is not a list of objects with the keys layer and count.")
    values = []
    for index, group in enumerate(groups):
        where = f"groups[{index}]"
        layer = _layer(group.get("layer"), f"{where}.layer")
        values.append(_object({**group, "layer": layer}, LayerGroup, where))
    return _object({**data, "groups": tuple(values)}, ModelConfig, "")


def _layer(data: Any, where: str) -> Layer:
    if not isinstance(data, dict):
        raise BadFile(f"{where} is not an object.")
    blocks = dict(data)
    ffn = blocks.pop("ffn", None)
    if ffn is not None:
        kind = Moe if isinstance(ffn, dict) and "n_experts" in ffn else Mlp
        blocks["ffn"] = _convert(ffn, kind, f"{where}.ffn")
    return _object(blocks, Layer, where)


def _object(data: dict[str, Any], kind: type[T], where: str) -> T:
    """Convert an object whose values are JSON data, or already of the type of their field."""
    types = get_type_hints(kind)
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        path = f"{where}.{field.name}" if where else field.name
        if field.name not in data:
            if field.default is MISSING:
                raise BadFile(f"{path} is missing.")
            continue
        value = data[field.name]
        if not is_dataclass(value) and field.name != "groups":
            value = _convert(value, types[field.name], path)
        values[field.name] = value
    return kind(**values)


def _convert(data: Any, kind: Any, where: str) -> Any:
    import msgspec

    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise BadFile(f"{where}: {error}.") from None
