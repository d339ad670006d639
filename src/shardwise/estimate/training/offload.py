"""Copies of saved activations to host memory and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from shardwise.arrays import Num, minimum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.memory.activations import layer_activations
from shardwise.estimate.training.memory.framework import DEFAULT_FRAMEWORK
from shardwise.estimate.training.memory.local_elements import LocalElements
from shardwise.estimate.training.memory.parameters import mesh_with_experts
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.ops.program import Step


def offload(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Item for copies of all layers' saved activations to host memory and back over PCIe.

    They take no time if the chip's file does not state the bandwidth of PCIe.
    """
    if priced.layout.offloads_activations:
        count = 2 * priced.config.n_layers
        n_bytes = _offloaded_bytes(priced, program)
        yield PricedItem(
            name="activations.offload",
            phase="forward",
            role="host",
            kind="permute",
            description="kept activations",
            count=count,
            joined_bytes=n_bytes / count,
            n_bytes=n_bytes,
            bytes_per_s=priced.rates.chip.pcie_bytes_per_s_per_chip or math.inf,
        )


def offload_share(priced: PricedLayout) -> Num:
    """Fraction of a stage's layers whose saved activations are offloaded."""
    if not priced.layout.offload_layers:
        return 1.0
    return minimum(1.0, priced.layout.offload_layers / priced.stage.held)


def _offloaded_bytes(priced: PricedLayout, program: Step) -> Num:
    """Bytes that all layers copy to host memory and back for one microbatch."""
    config = priced.config
    job = priced.job
    mesh = mesh_with_experts(priced.layout, priced.mesh)
    sizes = {name: program.logits.sizes[name] for name in "BT"}
    local = LocalElements(mesh, {**sizes, "tensor": mesh["tensor"]})
    elements: Num = 0
    for offload, sign in (((), 1), (priced.layout.offload, -1)):
        layout = replace(priced.layout, offload=offload, offload_layers=None)
        layers = layer_activations(
            config, job, program, layout, local, config.n_layers, DEFAULT_FRAMEWORK
        )
        for group, layer in zip(config.groups, layers, strict=True):
            elements = elements + sign * group.count * layer.saved
    return 2 * elements * job.activation_bytes
