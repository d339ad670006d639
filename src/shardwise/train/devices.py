"""The devices that a plan runs on: those of this process, or of several joined ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.errors import BadInput, MissingExtra
from shardwise.hardware import System, Torus
from shardwise.train import heartbeat
from shardwise.train.malloc import keep_memory

INSTALL = "pip install 'shardwise[train]'"
SILENT_S = 100  # after which JAX gives a process up; `alive` does it before, with a word
PLATFORMS = {"tpu": "tpu", "gpu": "gpu", "cpu": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """How several processes find each other; all empty where the environment says it, or for one.

    Args:
        coordinator: `HOST:PORT` of process 0.
        processes: of the whole run.
        process: number of this one.
    """

    coordinator: str = ""
    processes: int | None = None
    process: int | None = None

    def __post_init__(self) -> None:
        if not self.coordinator and (self.processes is not None or self.process is not None):
            raise BadInput("--processes and --process need --coordinator HOST:PORT.")
        if self.coordinator and None in (self.processes, self.process):
            raise BadInput("--coordinator needs --processes N and --process I.")
        host, _, port = self.coordinator.rpartition(":")
        if self.coordinator and not (host and port.isdecimal() and int(port) < 1 << 16):
            raise BadInput(f"--coordinator {self.coordinator} is no HOST:PORT, as 10.0.0.1:8476.")
        if self.coordinator and not 0 <= (self.process or 0) < (self.processes or 0):
            raise BadInput(f"--process {self.process} is not one of {self.processes}, from 0 on.")


def join(joined: Joined, say: Callable[[str], None]) -> None:
    """Make this process one of several, where it is one: JAX finds Slurm, Kubernetes, MPI and TPUs.

    Args:
        say: told whom it waits for.

    Raises:
        MissingExtra: JAX is not installed.
        BadInput: the others cannot be reached.
    """
    try:
        import jax
    except ImportError:
        raise MissingExtra(f"training runs in JAX, which is missing: {INSTALL}") from None
    if jax.distributed.is_initialized():
        return
    if joined.coordinator:
        say(f"process {joined.process} of {joined.processes} meets them at {joined.coordinator}.")
        _join(joined)
    else:
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=SILENT_S)
        except (ValueError, RuntimeError):
            return  # nothing in the environment names a coordinator: one process
    state = _distributed()
    if state.num_processes > 1:
        heartbeat.watch(state.client, state.process_id, state.num_processes)


def _join(joined: Joined) -> None:
    import jax

    try:
        jax.distributed.initialize(
            joined.coordinator,
            joined.processes,
            joined.process,
            heartbeat_timeout_seconds=SILENT_S,
        )
    except (ValueError, RuntimeError) as error:
        where = f"no run of {joined.processes} at {joined.coordinator}"
        raise BadInput(f"{where}: {str(error).splitlines()[0]}") from None


def is_first() -> bool:
    """Whether this process speaks for all of the run."""
    import jax

    return jax.process_index() == 0


def devices_for(system: System, model: str) -> np.ndarray[Any, Any]:
    """The devices of a machine in its own shape: [node, chip] or [slice, x, y, ..., core].

    Where the machine is `cpu:N` and JAX has not started, this CPU becomes N devices.

    Args:
        model: its name, for the advice.

    Raises:
        BadInput: other devices are there; says which, and what could be planned for them.
    """
    import jax

    per_chip = system.chip.n_devices or 1
    wanted = system.n_chips * per_chip
    platform = PLATFORMS.get(system.chip.kind, "")
    if platform == "cpu":
        _split_cpu(wanted)
    devices = sorted(jax.devices(), key=_place)
    # Of more than are needed the first are taken, but not of a torus or of a run of many hosts.
    enough = len(devices) == wanted or (
        len(devices) > wanted and platform != "tpu" and jax.process_count() == 1
    )
    if devices[0].platform != platform or not enough:
        raise BadInput(_elsewhere(system, model, wanted, devices))
    grid = np.empty(wanted, dtype=object)
    grid[:] = devices[:wanted]
    if isinstance(system.topology, Torus):
        return grid.reshape(system.n_slices, *system.topology.shape, per_chip)
    return grid.reshape(system.topology.n_nodes, -1)


def cpu_devices(n: int) -> list[Any]:
    """This CPU as n devices.

    Raises:
        BadInput: JAX has started with fewer.
    """
    import jax

    _split_cpu(n)
    found = jax.devices("cpu")
    if len(found) < n:
        raise BadInput(f"JAX has started with {len(found)} CPU devices; {n} are asked for.")
    return found[:n]


def _split_cpu(n: int) -> None:
    """This CPU as n devices, shared by all processes of the run, unless JAX has started."""
    import jax

    joined = jax.distributed.is_initialized()
    processes = _distributed().num_processes if joined else 1
    keep_memory()
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", max(1, n // processes))
    except RuntimeError:
        return  # it has as many as it was started with


def _distributed() -> Any:
    """What JAX knows of the run before its backend starts: there is no public way to ask."""
    from jax._src import distributed

    return distributed.global_state


def _place(device: Any) -> tuple[Any, ...]:
    """Order of devices: along slices and coordinates of TPUs, by process and number of others."""
    if getattr(device, "coords", None) is not None:
        return (getattr(device, "slice_index", 0), *device.coords, device.core_on_chip)
    return (device.process_index, device.id)


def _elsewhere(system: System, model: str, wanted: int, devices: list[Any]) -> str:
    here = devices[0]
    word = "device" if wanted == 1 else "devices"
    kind = {"tpu": "a TPU", "gpu": "a GPU", "cpu": "a CPU"}.get(here.platform, here.platform)
    found = f"{len(devices)} of {kind} ({here.device_kind})"
    advice = f"shardwise plan {model} CHIP:{len(devices)} --train --batch NxT"
    if here.platform == "cpu":
        advice = f"shardwise plan {model} cpu:8 --train --batch NxT -o plan.json"
    return (
        f"the plan is for {system.name}: {wanted:,} {word} of {system.chip.title}. "
        f"Here are {found}. A plan for this machine: {advice}"
    )
