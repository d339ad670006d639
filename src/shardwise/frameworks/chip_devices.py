"""Chips that JAX shows as several devices (TPU v2, v3, 7x): MaxText and vLLM count these.

A mesh axis of n devices has a shard on each, so that a chip has two of its shards: `fsdp 128` of
64 chips of 7x is `fsdp 64` of a plan, and `tensor 8` is `tensor 4` where `fsdp` has one member.
MaxText, src/maxtext/utils/accelerator_to_spec_map.py: tpu7x of 4x4x4 chips is 128 devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwise.errors import BadInput, BadShape
from shardwise.frameworks.exported import TrainingRun, refuse
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch
from shardwise.hardware import Chip, System
from shardwise.search.training.runtime_limits import devices_per_chip, heads_divide

# Roles whose axis shards the weights, in the order in which devices of a chip are counted as one.
_SHARDING = ("fsdp", "tensor", "expert", "pipe")


def device_sizes(run: TrainingRun, framework: str) -> dict[str, int]:
    """The sizes of a plan's mesh in devices: role -> devices.

    The devices of a chip share its sequences along `fsdp`. If these do not divide, the devices
    share the heads along `tensor`.

    Raises:
        BadInput: they divide neither.
    """
    sizes = dict(run.layout.mesh.sizes)
    n = devices_per_chip(run.system.chip)
    if run.layout.micro_batch % n == 0:
        return sizes | {"fsdp": sizes["fsdp"] * n}
    if heads_divide(run.model, sizes["tensor"] * n):
        return sizes | {"tensor": sizes["tensor"] * n}
    raise refuse(
        framework,
        f"{run.layout.micro_batch} sequences of a microbatch on {n} devices of a chip",
        f"each device has whole sequences, or 1/{sizes['tensor'] * n} of the heads, which "
        f"{run.model.name} does not divide into",
        f"--fix micro_batch={n}",
    )


def on_chips(launch: TrainingLaunch, system: System) -> TrainingLaunch:
    """A launch that counts devices, for the chips of a machine.

    Raises:
        BadInput: the machine has another number of devices than the file.
        BadShape: the sizes do not fit the machine, or each device of a chip has all weights.
    """
    n = devices_per_chip(system.chip)
    if not launch.counts_devices or n == 1:
        return launch
    n_devices = system.n_chips * n
    if launch.n_chips and launch.n_chips != n_devices:
        raise BadInput(
            f"the file is for {launch.n_chips:,} devices of JAX, and {system.name} has "
            f"{n_devices:,}, {n} a chip. {_machine_of(launch.n_chips, n)}"
        )
    sizes = dict(launch.mesh(n_devices, "devices of JAX").sizes)
    role = next((role for role in _SHARDING if sizes[role] % n == 0), None)
    if role is None:
        raise BadShape(
            f"the file has a copy of the weights on each of the {n} devices of a chip; plans have "
            f"one a chip. Write ici_fsdp_parallelism={n}, and 1/{n} of ici_data_parallelism."
        )
    sizes[role] //= n
    return replace(
        launch,
        sizes=sizes,
        fill=None,
        n_chips=system.n_chips,
        batch_per_chip=launch.batch_per_chip and launch.batch_per_chip * n,
        zero=None if sizes["fsdp"] == 1 and launch.zero == 3 else launch.zero,
        counts_devices=False,
    )


def engine_device_sizes(sizes: Mapping[str, int], chip: Chip) -> dict[str, int]:
    """The sizes of an engine in devices, which share heads, or sequences where `tensor` is 1."""
    role = "expert" if sizes["tensor"] == 1 and sizes["expert"] > 1 else "tensor"
    return {**sizes, role: sizes[role] * devices_per_chip(chip)}


def engine_on_chips(launch: ServingLaunch, chip: Chip) -> ServingLaunch:
    """An engine whose file counts devices, for the chips of a machine.

    Raises:
        BadShape: its sizes are not those of whole chips.
    """
    n = devices_per_chip(chip)
    if not launch.counts_devices or n == 1:
        return launch
    sizes = dict(launch.sizes)
    role = next((role for role in ("tensor", "expert", "pipe") if sizes[role] % n == 0), None)
    if role is None:
        raise BadShape(
            f"the file's tensor {sizes['tensor']} counts devices, and a chip of {chip.name} has "
            f"{n}. Write a multiple of {n}."
        )
    sizes[role] //= n
    return replace(launch, sizes=sizes, counts_devices=False)


def _machine_of(n_devices: int, n: int) -> str:
    """What to name for so many devices."""
    if n_devices % n:
        return f"Write sizes whose product is a multiple of {n}."
    return f"Name a machine of {n_devices // n:,} chips."
