"""Compile targets: descriptions of machines for XLA's compilers.

`jax.experimental.topologies.get_topology_desc` describes a machine that is not present; a `Target`
holds its keyword arguments as plain values. Programs run on devices, of which a chip may have two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.check.compiling.gpu_description import capability_of, gpu_config
from shardwise.hardware import Chip, Switched, System, Torus

# Chip in the catalog -> the TPU compiler's name for it, and the FLOPs (2 per multiply-add) that all
# matrix units of one device do in one cycle. For v2 to v5p this is the published peak divided by
# the published clock rate; for v6e and 7x it follows from their 4 matrix units of 256 x 256.
_TPUS = {
    "v2": ("v2", 2 * 128 * 128),
    "v3": ("v3", 2 * 2 * 128 * 128),
    "v4": ("v4", 8 * 2 * 128 * 128),
    "v5e": ("v5e", 4 * 2 * 128 * 128),
    "v5p": ("v5p", 8 * 2 * 128 * 128),
    "v6e": ("v6e", 4 * 2 * 256 * 256),
    "7x": ("tpu7x", 4 * 2 * 256 * 256),
}

# Chips per host along each torus axis that the TPU compiler assumes by default.
_DEFAULT_HOST_SHAPE = (2, 2, 1)

MEMORY_LIMIT = "xla_tpu_max_hbm_size_mib"  # option of the TPU's compiler

NOT_CHECKED = "Memory and time are not checked: the CPU's compiler is used instead."


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The machine for which a program is compiled, as its compiler sees it.

    Args:
        name: the machine, such as `v5e:4x4*2`.
        platform: platform of the compiler: `tpu`, `gpu`, or `cpu` with virtual devices.
        grid: shape of the array of devices: (slices, torus axes..., devices of a chip) for a torus,
            (domains, GPUs of a domain) for GPUs.
        topology: keyword arguments of `get_topology_desc`; empty for `cpu`.
        devices_per_chip: number of devices of one chip.
        memory_bytes: memory that a program may use on one device; None if no public source says.
        clock_hz: cycles per second of the matrix units, from the published peak; None if the chip
            is not a TPU.
        flops_per_cycle: FLOPs of the matrix units of one device in one cycle; None if the chip is
            not a TPU.
        options: compiler options for the machine.
        capability: compute capability of a GPU, as `9.0`; "" for other chips.
        note: why the chip's own compiler is not used; "" if it is used.
    """

    name: str
    platform: str
    grid: tuple[int, ...]
    topology: Mapping[str, Any] = field(default_factory=dict, hash=False)
    devices_per_chip: int = 1
    memory_bytes: float | None = None
    clock_hz: float | None = None
    flops_per_cycle: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    capability: str = ""
    note: str = ""

    @property
    def n_devices(self) -> int:
        """Number of devices of the whole machine."""
        return math.prod(self.grid)

    @property
    def proves_memory(self) -> bool:
        """Whether the compiler lays out arrays as on the chip, so that it proves what fits."""
        return self.platform != "cpu"


def target_of(system: System) -> Target:
    """The target for a machine's own compiler if XLA has one, else for the CPU's with a note.

    >>> from shardwise.hardware import parse_system
    >>> target_of(parse_system("v5e:16x16")).topology
    {'topology_name': 'v5e:16x16', 'wrap': [True, True, False]}
    """
    chip = system.chip
    topology = system.topology
    if chip.kind == "tpu" and chip.name in _TPUS and isinstance(topology, Torus):
        return _tpu_target(system, topology)
    if chip.kind == "gpu" and isinstance(topology, Switched) and capability_of(chip.name):
        return _gpu_target(system, topology)
    if chip.kind == "cpu":
        return cpu_target(system, "")
    return cpu_target(system, f"XLA has no compiler for {chip.name}. {NOT_CHECKED}")


def cpu_target(system: System, note: str) -> Target:
    """A target of virtual CPU devices: one for each device of the machine, in the same grid."""
    devices_per_chip = system.chip.n_devices or 1
    return Target(
        name=system.name,
        platform="cpu",
        grid=_device_grid(system),
        devices_per_chip=devices_per_chip,
        memory_bytes=_device_memory_bytes(system.chip),
        note=note,
    )


def _tpu_target(system: System, torus: Torus) -> Target:
    chip = system.chip
    name, flops_per_cycle = _TPUS[chip.name]
    shape = torus.shape + (1,) * (3 - torus.n_axes)
    arguments: dict[str, Any] = {
        "topology_name": f"{name}:{torus}",
        "wrap": [*torus.wrapped, *(False,) * (3 - torus.n_axes)],
    }
    if any(n % host for n, host in zip(shape, _DEFAULT_HOST_SHAPE, strict=True)):
        arguments["chips_per_host_bounds"] = list(shape)
    if chip.name == "v4":
        arguments["chip_config_name"] = "megacore"
    if system.n_slices > 1:
        arguments["num_slices"] = system.n_slices
    devices_per_chip = chip.n_devices or 1
    memory = _device_memory_bytes(chip)
    options = {}
    if chip.hbm_usable_bytes is None and memory:
        # The user set the memory size. The compiler uses the smaller of this and the chip's own.
        options[MEMORY_LIMIT] = str(int(memory / 2**20))
    peak = chip.peak_flops_per_s.get("bf16")
    return Target(
        name=system.name,
        platform="tpu",
        grid=_device_grid(system),
        topology=arguments,
        devices_per_chip=devices_per_chip,
        memory_bytes=memory,
        options=options,
        clock_hz=peak / devices_per_chip / flops_per_cycle if peak else None,
        flops_per_cycle=flops_per_cycle,
    )


def _gpu_target(system: System, switched: Switched) -> Target:
    chip = system.chip
    n_domains, domain_size = _device_grid(system)
    gpus_per_host = min(chip.chips_per_host or domain_size, domain_size)
    if domain_size % gpus_per_host:
        gpus_per_host = domain_size
    config = gpu_config(chip)
    if isinstance(config, str):
        topology = f"{n_domains}x{domain_size // gpus_per_host}x{gpus_per_host}"
        return Target(
            name=system.name,
            platform="gpu",
            grid=(n_domains, domain_size),
            topology={"topology_name": "", "target_config": config, "topology": topology},
            memory_bytes=_device_memory_bytes(chip),
            capability=capability_of(chip.name) or "",
        )
    missing = ", ".join(config)
    return cpu_target(system, f"No public figure for {missing} of {chip.name}. {NOT_CHECKED}")


def _device_grid(system: System) -> tuple[int, ...]:
    if isinstance(system.topology, Torus):
        return (system.n_slices, *system.topology.shape, system.chip.n_devices or 1)
    n_nodes = system.topology.n_nodes
    return (n_nodes, system.topology.n_gpus // n_nodes)


def _device_memory_bytes(chip: Chip) -> float | None:
    total = chip.hbm_usable_bytes or chip.hbm_bytes
    return total / (chip.n_devices or 1) if total else None
