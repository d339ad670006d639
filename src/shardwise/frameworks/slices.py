"""Slices of a machine, which MaxText counts apart: joined by a data-center network.

Its axes `dcn_*` shard over slices, and their product is the number of slices; nodes of GPUs are
slices to JAX. By default `dcn_data_parallelism` is what the others leave over.
https://github.com/AI-Hypercomputer/maxtext, src/maxtext/utils/max_utils.py
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import BadInput
from shardwise.frameworks.exported import nodes_of
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.hardware import Switched, System


def over_slices(launch: TrainingLaunch, system: System) -> TrainingLaunch:
    """A launch whose sizes count slices, on all slices of a machine.

    Raises:
        BadInput: the machine has another number of slices.
    """
    if launch.n_slices is None:
        return launch
    nodes = nodes_of(system)
    is_switched = isinstance(system.topology, Switched)
    n_slices, noun = (nodes.domains, "nodes") if is_switched else (nodes.slices, "slices")
    role = launch.slice_role
    times, remainder = divmod(n_slices, launch.n_slices)
    if remainder or (role is None and times != 1):
        raise BadInput(
            f"the file shards over {launch.n_slices} slices (dcn_* axes or num-slices), and "
            f"{system.name} has {n_slices} {noun}. Name a machine of {launch.n_slices} {noun}, or "
            f"write dcn_* sizes whose product is {n_slices}."
        )
    if role is None or times == 1:
        return replace(launch, n_slices=None, slice_role=None)
    sizes = dict(launch.sizes)
    if role != launch.fill:
        sizes[role] = sizes.get(role, 1) * times
    return replace(
        launch,
        sizes=sizes,
        n_chips=launch.n_chips and launch.n_chips * times,
        batch=launch.batch and launch.batch * times,
        n_slices=None,
        slice_role=None,
    )
