"""Devices that a plan runs on, in one process or in several that form one run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.errors import BadInput, MissingExtra
from shardwise.hardware import System, Torus
from shardwise.train import heartbeat
from shardwise.train.malloc import keep_freed_memory

INSTALL_COMMAND = "pip install 'shardwise[train]'"
# JAX ends a run this long after the last heartbeat; `heartbeat` does so earlier, with a reason.
JAX_TIMEOUT_S = 100
# JAX sets this variable when it is imported on a machine without a TPU.
NO_TPU_VARIABLE = "TPU_SKIP_MDS_QUERY"
# Without these, libtpu writes warnings to stderr on such a machine. Their values have no effect.
QUIET_LIBTPU = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
PLATFORMS = {"tpu": "tpu", "gpu": "gpu", "cpu": "cpu"}
PLATFORM_TITLES = {"tpu": "a TPU", "gpu": "a GPU", "cpu": "a CPU"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Address at which the processes of a run find each other.

    All fields are empty for a single process, and where the environment (Slurm, for example) has
    the address.

    Args:
        coordinator: `HOST:PORT` of process 0.
        processes: number of processes in the run.
        process: index of this process, from 0.
    """

    coordinator: str = ""
    processes: int | None = None
    process: int | None = None

    def __post_init__(self) -> None:
        if not self.coordinator:
            if self.processes is not None or self.process is not None:
                raise BadInput("--processes and --process need --coordinator HOST:PORT.")
            return
        if self.processes is None or self.process is None:
            raise BadInput("--coordinator needs --processes N and --process I.")
        host, _, port = self.coordinator.rpartition(":")
        if not (host and port.isdecimal() and int(port) < 1 << 16):
            raise BadInput(
                f"--coordinator {self.coordinator} is not HOST:PORT, for example 10.0.0.1:8476."
            )
        if not 0 <= self.process < self.processes:
            raise BadInput(
                f"--process {self.process} is not between 0 and {self.processes - 1} "
                f"(--processes {self.processes})."
            )


def join(rendezvous: Rendezvous, on_note: Callable[[str], None]) -> None:
    """Connect to the other processes of the run.

    Without a coordinator, JAX looks for one in the environment of Slurm, Kubernetes, MPI and TPU
    pods; if there is none, the run has one process.

    Args:
        rendezvous: address of the coordinator.
        on_note: receives a message before this process waits for the others.

    Raises:
        MissingExtra: JAX is not installed.
        BadInput: the other processes cannot be reached.
    """
    require_jax()
    import jax

    if jax.distributed.is_initialized():
        return
    if rendezvous.coordinator:
        on_note(
            f"process {rendezvous.process} of {rendezvous.processes} meets the others at "
            f"{rendezvous.coordinator}."
        )
        _initialize(rendezvous)
    else:
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=JAX_TIMEOUT_S)
        except (ValueError, RuntimeError):
            return  # the environment names no coordinator: one process
    state = _distributed_state()
    if state.num_processes > 1:
        heartbeat.watch(state.client, state.process_id, state.num_processes)


def require_jax() -> None:
    """Check that JAX is installed.

    Raises:
        MissingExtra: it is not.
    """
    try:
        import jax  # noqa: F401 (imported to see whether it is there)
    except ImportError:
        raise MissingExtra(f"training runs in JAX, which is missing: {INSTALL_COMMAND}") from None


def _initialize(rendezvous: Rendezvous) -> None:
    import jax

    try:
        jax.distributed.initialize(
            rendezvous.coordinator,
            rendezvous.processes,
            rendezvous.process,
            heartbeat_timeout_seconds=JAX_TIMEOUT_S,
        )
    except (ValueError, RuntimeError) as error:
        problem = f"no run of {rendezvous.processes} processes at {rendezvous.coordinator}"
        raise BadInput(f"{problem}: {str(error).splitlines()[0]}") from None


def is_first() -> bool:
    """Return whether this is process 0, which writes logs and messages for all."""
    import jax

    return jax.process_index() == 0


def devices_for(system: System, model: str) -> np.ndarray[Any, Any]:
    """Return the devices of a machine as an array of its shape.

    The shape is [node, chip] on GPUs and CPUs, [slice, x, y, ..., core of a chip] on TPUs. For the
    machine `cpu:N`, JAX is told to use this CPU as N devices, if it has not started yet.

    Args:
        system: the machine of the plan.
        model: name of the model, for the command that an error suggests.

    Raises:
        BadInput: the available devices are not those of the machine, or cannot be used.
    """
    import jax

    per_chip = system.chip.n_devices or 1
    n_devices = system.n_chips * per_chip
    platform = PLATFORMS.get(system.chip.kind, "")
    if platform == "cpu":
        _configure_cpu_devices(n_devices)
    if NO_TPU_VARIABLE in os.environ:
        for name, value in QUIET_LIBTPU.items():
            os.environ.setdefault(name, value)
    try:
        devices = sorted(jax.devices(), key=_sort_key)
    except RuntimeError as error:  # of a driver, or because another process has the devices
        reason = str(error).splitlines()[0]
        raise BadInput(f"JAX cannot use the devices of this machine: {reason}") from None
    # Spare devices are left idle, except on a torus or with several processes: there the position
    # of each device matters.
    may_use_fewer = platform != "tpu" and jax.process_count() == 1
    enough = len(devices) == n_devices or (len(devices) > n_devices and may_use_fewer)
    if devices[0].platform != platform or not enough:
        raise BadInput(_mismatch_message(system, model, n_devices, devices))
    grid = np.empty(n_devices, dtype=object)
    grid[:] = devices[:n_devices]
    if isinstance(system.topology, Torus):
        return grid.reshape(system.n_slices, *system.topology.shape, per_chip)
    return grid.reshape(system.topology.n_nodes, -1)


def cpu_devices(n_devices: int) -> list[Any]:
    """Return `n_devices` JAX devices of this CPU.

    Raises:
        BadInput: JAX has started already, with fewer devices.
    """
    import jax

    _configure_cpu_devices(n_devices)
    devices = jax.devices("cpu")
    if len(devices) < n_devices:
        raise BadInput(f"JAX has started with {len(devices)} CPU devices; {n_devices} are needed.")
    return devices[:n_devices]


def _configure_cpu_devices(n_devices: int) -> None:
    """Make JAX use this CPU as `n_devices` devices, divided among the processes of the run.

    This has no effect once JAX has started.
    """
    import jax

    n_processes = 1
    if jax.distributed.is_initialized():
        n_processes = _distributed_state().num_processes
    keep_freed_memory()
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", max(1, n_devices // n_processes))
    except RuntimeError:
        return  # JAX has started already, with its own number of devices


def _distributed_state() -> Any:
    """State of `jax.distributed`, which JAX does not expose before its backend starts."""
    from jax._src import distributed

    return distributed.global_state


def _sort_key(device: Any) -> tuple[Any, ...]:
    """Sort key: slice, coordinates and core on TPUs; process and device id elsewhere."""
    if getattr(device, "coords", None) is not None:
        return (getattr(device, "slice_index", 0), *device.coords, device.core_on_chip)
    return (device.process_index, device.id)


def _mismatch_message(system: System, model: str, n_devices: int, devices: list[Any]) -> str:
    """Return the error message for devices other than the planned ones."""
    device = devices[0]
    noun = "devices"
    if n_devices == 1:
        noun = "device"
    title = PLATFORM_TITLES.get(device.platform, device.platform)
    advice = f"shardwise plan {model} CHIP:{len(devices)} --train --batch NxT"
    if device.platform == "cpu":
        advice = f"shardwise plan {model} cpu:8 --train --batch NxT -o plan.json"
    return (
        f"the plan is for {system.name}: {n_devices:,} {noun} of {system.chip.title}. "
        f"Here are {len(devices)} of {title} ({device.device_kind}). "
        f"A plan for this machine: {advice}"
    )
