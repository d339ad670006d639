"""Names of the tensors in published checkpoints, and the weights that they hold.

Names and shapes are those in the published files. They can differ from those of the transformers
library, which for instance stacks the tensors of experts when it loads a file. Files of multimodal
models have the prefix "language_model." before these names; early files of GPT-2 lack the prefix
"transformer.".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.models import families
from shardwise.models.config import Moe
from shardwise.models.model import ModelConfig, stack
from shardwise.models.stack import unrolled
from shardwise.models.tensor_layout import TensorLayout, default_layout
from shardwise.models.weights import outer_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Layouts of all weights of a model in a checkpoint, by the weights' names in `weights`.

    Args:
        outer: Layouts of the weights outside the layers.
        groups: For each layer group, layouts of the weights of one of its layers. Besides those of
            `weights.layer_weights` there is "router_correction" [E] if the routing has one: it is
            stored, but not a parameter.
    """

    outer: Mapping[str, TensorLayout]
    groups: tuple[Mapping[str, TensorLayout], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A weight of one layer, or of one expert of it, with the checkpoint tensor that holds it.

    Args:
        tensor: Name of the tensor in the file.
        weight: Name of the weight, as in `weights`.
        layer: Layer index; None for a weight outside the layers.
        expert: Expert index; None unless experts have separate tensors.
        layout: Layout of the weight in the tensor.
    """

    tensor: str
    weight: str
    layer: int | None
    expert: int | None
    layout: TensorLayout


def weight_names(config: ModelConfig) -> WeightNames:
    """Layouts of all weights of a model in a published checkpoint.

    Raises:
        BadInput: The tensor names are not known for the model's family or for Mamba blocks.
    """
    family = families.checkpoint_formats().get(config.family)
    if family is None or config.mambas:
        known = ", ".join(sorted(families.checkpoint_formats()))
        raise BadInput(
            f"the tensor names in checkpoints of {config.name} (family {config.family}) are not "
            f"known. Known families: {known}."
        )
    outer = {}
    for weight in outer_weights(config):
        outer[weight.name] = default_layout(weight, family.outer_names[weight.name])
    groups = tuple(family.layer_tensors(config, group.layer) for group in config.groups)
    return WeightNames(outer=outer, groups=groups)


def entries(config: ModelConfig) -> Iterator[Entry]:
    """Yield every weight with its checkpoint tensor; a fused tensor occurs once per weight."""
    names = weight_names(config)
    for weight, layout in names.outer.items():
        yield Entry(
            tensor=layout.tensor_name, weight=weight, layer=None, expert=None, layout=layout
        )
    for layer, kind in enumerate(unrolled(stack(config))):
        ffn = config.groups[kind].layer.ffn
        for weight, layout in names.groups[kind].items():
            experts: tuple[int | None, ...] = (None,)
            if layout.per_expert and isinstance(ffn, Moe):
                experts = tuple(range(ffn.n_experts))
            for expert in experts:
                yield Entry(
                    tensor=layout.tensor_name.format(layer=layer, expert=expert),
                    weight=weight,
                    layer=layer,
                    expert=expert,
                    layout=layout,
                )
