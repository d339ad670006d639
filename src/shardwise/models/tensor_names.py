"""Names of the tensors in published checkpoints, and the weights that they hold.

Names and shapes are those of the published files, in which for instance each expert has separate
tensors; the transformers library stacks some of them when it loads a file. Files of multimodal
models prefix these names with "language_model."; early files of GPT-2 leave out "transformer.".
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
    """Checkpoint layouts of all weights of a model, by the names that `weights` gives them.

    Args:
        outer: Weights outside the layers.
        groups: Weights of one layer of each group. Besides `weights.layer_weights` they include
            "router_correction" [E] if routing has one: it is stored, but not a parameter.
    """

    outer: Mapping[str, TensorLayout]
    groups: tuple[Mapping[str, TensorLayout], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A checkpoint tensor that holds a weight, of one layer and expert.

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
    """Checkpoint layouts of all weights of a model.

    Raises:
        BadInput: The model's family has no published checkpoints, or the model has Mamba blocks.
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
    """Yield every use of a checkpoint tensor; a fused tensor occurs once per weight in it."""
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
