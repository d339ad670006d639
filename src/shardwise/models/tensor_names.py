"""Where each weight of a model stands in a published checkpoint of its family.

Names and shapes are those of the files that are published, in which for instance each expert has
tensors of its own; the transformers library stacks some of them when it loads a file. A file of a
model that also sees puts "language_model." before the names, early ones of GPT-2 leave out
"transformer.".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.models import families
from shardwise.models.config import Moe
from shardwise.models.model import ModelConfig
from shardwise.models.stack import stack, unrolled
from shardwise.models.stored import Stored, stored
from shardwise.models.weights import outer_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Where the weights of a model stand, by our names of them (`weights`).

    Args:
        outer: Those around the layers.
        groups: Those of one layer of each group. Beside `weights.layer_weights` there is
            "router_correction" [E] where routing has one: it is stored, but no parameter.
    """

    outer: Mapping[str, Stored]
    groups: tuple[Mapping[str, Stored], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of a checkpoint that one weight, of one layer and one expert, is made of.

    Args:
        tensor: Its name in the file.
        weight: Our name of the weight.
        layer: The layer, None around them.
        expert: The expert, None where the tensor is not of one.
        stored: How the weight is made of it.
    """

    tensor: str
    weight: str
    layer: int | None
    expert: int | None
    stored: Stored


def weight_names(config: ModelConfig) -> WeightNames:
    """Where the weights of a model stand in a checkpoint of its family.

    Raises:
        BadInput: A model of no published family, or with Mamba blocks.
    """
    family = families.named().get(config.family)
    if family is None or config.mambas:
        known = ", ".join(sorted(families.named()))
        raise BadInput(
            f"how checkpoints of {config.name} (family {config.family}) name their tensors is not "
            f"known. Known families: {known}."
        )
    return WeightNames(
        outer={w.name: stored(w, family.outer[w.name]) for w in outer_weights(config)},
        groups=tuple(family.layer(config, group.layer) for group in config.groups),
    )


def entries(config: ModelConfig) -> Iterator[Entry]:
    """Every use of a tensor of a checkpoint; a fused tensor occurs once for each weight in it."""
    names = weight_names(config)
    for ours, where in names.outer.items():
        yield Entry(tensor=where.tensor, weight=ours, layer=None, expert=None, stored=where)
    for layer, kind in enumerate(unrolled(stack(config))):
        ffn = config.groups[kind].layer.ffn
        n_experts = ffn.n_experts if isinstance(ffn, Moe) else 0
        for ours, where in names.groups[kind].items():
            for expert in range(n_experts) if where.per_expert else (None,):
                yield Entry(
                    tensor=where.tensor.format(layer=layer, expert=expert),
                    weight=ours,
                    layer=layer,
                    expert=expert,
                    stored=where,
                )
