"""The devices of this machine, as a plan numbers them."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

import numpy as np

from shardwise.errors import BadInput, MissingExtra
from shardwise.hardware import System, Torus
from shardwise.runtime.malloc import keep_freed_memory

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


def require_jax(work: str, install_command: str) -> None:
    """Check that JAX is installed.

    Args:
        work: what runs in JAX: `training`.
        install_command: installs JAX with all else that it needs.

    Raises:
        MissingExtra: JAX is not installed.
    """
    try:
        import jax  # noqa: F401 (imported to see whether it is there)
    except ImportError:
        raise MissingExtra(f"{work} runs in JAX, which is missing: {install_command}") from None


def distributed_state() -> Any:
    """State of `jax.distributed`, which JAX does not expose before its backend starts."""
    from jax._src import distributed

    return distributed.global_state


def devices_for(
    system: System, model: str, work: str = "--train --batch NxT"
) -> np.ndarray[Any, Any]:
    """Return the devices of a machine as an array of its shape.

    The shape is [node, chip] on GPUs and CPUs, [slice, x, y, ..., core of a chip] on TPUs. For the
    machine `cpu:N`, JAX is told to use this CPU as N devices, if it has not started yet.

    Args:
        system: the machine of the plan.
        model: name of the model, for the command that an error suggests.
        work: options of that command.

    Raises:
        BadInput: the available devices are not those of the machine, or cannot be used.
    """
    import jax

    per_chip = system.chip.n_devices or 1
    n_devices = system.n_chips * per_chip
    platform = PLATFORMS.get(system.chip.kind, "")
    if platform == "cpu":
        _configure_cpu_devices(n_devices)
    devices = local_devices()
    # Spare devices are left idle, except on a torus or with several processes: there the position
    # of each device matters.
    may_use_fewer = platform != "tpu" and jax.process_count() == 1
    enough = len(devices) == n_devices or (len(devices) > n_devices and may_use_fewer)
    if devices[0].platform != platform or not enough:
        raise BadInput(_mismatch_message(system, f"{model} {{}} {work}", n_devices, devices))
    grid = np.empty(n_devices, dtype=object)
    grid[:] = devices[:n_devices]
    if isinstance(system.topology, Torus):
        return grid.reshape(system.n_slices, *system.topology.shape, per_chip)
    return grid.reshape(system.topology.n_nodes, -1)


def local_devices() -> list[Any]:
    """Return all devices that JAX has here, in the order of a plan's chips.

    Raises:
        BadInput: they cannot be used.
    """
    import jax

    keep_freed_memory()
    if NO_TPU_VARIABLE in os.environ:
        for name, value in QUIET_LIBTPU.items():
            os.environ.setdefault(name, value)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        devices = jax.devices()
    except RuntimeError as error:  # of a driver, or because another process has the devices
        reason = str(error).splitlines()[0]
        raise BadInput(f"JAX cannot use the devices of this machine: {reason}") from None
    if on_sigterm is not None and threading.current_thread() is threading.main_thread():
        # libtpu has installed a handler that writes the stacks of all threads to stderr.
        signal.signal(signal.SIGTERM, on_sigterm)
    return sorted(devices, key=_sort_key)


def devices_or_cpu(n_devices: int) -> list[Any]:
    """Return `n_devices` of the TPUs or GPUs that JAX has here; without any, of this CPU.

    Raises:
        BadInput: there are fewer, or they cannot be used.
    """
    import jax

    keep_freed_memory()
    with suppress(RuntimeError):  # JAX has started already
        jax.config.update("jax_num_cpu_devices", n_devices)
    devices = local_devices()
    title = PLATFORM_TITLES.get(devices[0].platform, devices[0].platform)
    if len(devices) < n_devices:
        raise BadInput(
            f"JAX has {len(devices)} devices of {title} ({devices[0].device_kind}) here; "
            f"{n_devices} are needed. JAX_PLATFORMS=cpu takes this CPU as so many devices."
        )
    return devices[:n_devices]


def _configure_cpu_devices(n_devices: int) -> None:
    """Make JAX use this CPU as `n_devices` devices, divided among the processes of the run.

    This has no effect once JAX has started.
    """
    import jax

    n_processes = 1
    if jax.distributed.is_initialized():
        n_processes = distributed_state().num_processes
    keep_freed_memory()
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", max(1, n_devices // n_processes))
    except RuntimeError:
        return  # JAX has started already, with its own number of devices


def _sort_key(device: Any) -> tuple[Any, ...]:
    """Sort key: slice, coordinates and core on TPUs; process and device id elsewhere."""
    if device.platform == "tpu":
        return (getattr(device, "slice_index", 0), *device.coords, device.core_on_chip)
    return (device.process_index, device.id)


def _mismatch_message(system: System, command: str, n_devices: int, devices: list[Any]) -> str:
    """Return the error message for devices other than the planned ones.

    Args:
        command: words of a command that plans, with {} for the machine.
    """
    device = devices[0]
    noun = "devices"
    if n_devices == 1:
        noun = "device"
    title = PLATFORM_TITLES.get(device.platform, device.platform)
    advice = "shardwise plan " + command.format(f"CHIP:{len(devices)}")
    if device.platform == "cpu":
        advice = "shardwise plan " + command.format("cpu:8") + " -o plan.json"
    return (
        f"the plan is for {system.name}: {n_devices:,} {noun} of {system.chip.title}. "
        f"Here are {len(devices)} of {title} ({device.device_kind}). "
        f"A plan for this machine: {advice}"
    )
