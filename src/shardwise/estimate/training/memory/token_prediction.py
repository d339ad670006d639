"""Memory of multi-token prediction (MTP) on the pipeline stage with the head."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.arrays import Num, maximum
from shardwise.estimate.training.memory.activations import LayerActivations
from shardwise.estimate.training.memory.local_elements import (
    LocalElements,
    activation_term,
    weight_term,
)
from shardwise.estimate.training.memory.parameters import (
    Parameters,
    dense_rules_of,
    layer_parameters,
)
from shardwise.models import ModelConfig
from shardwise.models.token_prediction import joint_weights, mtp_groups, mtp_model
from shardwise.ops.program import Step
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.rules import Rules
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import stages

# Arrays of the width of a residual that a projection saves: the two that it joins, and these after
# their norms, which remat of norms computes again.
JOINED, NORMED = 2, 2


class MtpLayers:
    """Parameters of one MTP layer on a chip.

    Attributes:
        layer: parameters of its Transformer layer.
        joint: parameters of its projection and norms.
    """

    def __init__(self, config: ModelConfig, rules: Rules, local: LocalElements) -> None:
        self.layer = Parameters()
        for parameters in layer_parameters(mtp_model(config), rules, local):
            self.layer = self.layer.plus(parameters)
        dense_rules = dense_rules_of(rules)
        terms = [weight_term(weight, dense_rules) for weight in joint_weights(config)]
        self.joint = Parameters(dense=local.total(terms), matmuls=local.total(terms[:1]))


def layers_beyond(config: ModelConfig, layout: Layout | Layouts, mtp_layers: int) -> Num:
    """MTP layers on the last stage beyond the layers of the largest one."""
    n_blocks = len(mtp_groups(config))
    return stages(config.n_layers, layout).held_beyond(mtp_layers * n_blocks) / n_blocks


def saved_elements(
    config: ModelConfig,
    step: Step,
    layout: Layout | Layouts,
    local: LocalElements,
    activations: Sequence[LayerActivations],
    mtp_layers: int,
) -> Num:
    """Elements that the MTP layers save on a chip, beyond those of a stage full of layers.

    Args:
        step: program of one microbatch on all chips.
        activations: of one layer of each kind of the model.
    """
    layer: Num = sum(activations[index].saved for index in mtp_groups(config))
    residual = next(kept for kept in step.saved if kept.array.name == "layer_input")
    width = JOINED if layout.recomputes("norms") else JOINED + NORMED
    joined = width * local.total([activation_term(residual)])
    n_elements = layers_beyond(config, layout, mtp_layers) * layer + mtp_layers * joined
    return n_elements * _in_flight(layout)


def _in_flight(layout: Layout | Layouts) -> Num:
    """Microbatches whose activations the layers beside the head save.

    It is one under schedules that run the backward pass of the last layers at once.
    """
    if not layout.is_pipelined or find(layout.schedule).ends_meet:
        return 1
    schedule = find(layout.schedule)
    chunks = schedule.chunks or layout.virtual
    pipe = layout.sizes["pipe"]
    on_last = schedule.in_flight(pipe, layout.n_microbatches, chunks, pipe - 1)
    return maximum(on_last - (chunks - 1) * pipe, 1)
