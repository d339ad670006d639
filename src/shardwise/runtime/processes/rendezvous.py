"""The processes of a run, which find each other at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.runtime.devices import distributed_state
from shardwise.runtime.processes import heartbeat

# JAX ends a run this long after the last heartbeat; `heartbeat` does so earlier, with a reason.
JAX_TIMEOUT_S = 100


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


def join(rendezvous: Rendezvous, on_note: Callable[[str], None], advice: str) -> None:
    """Connect to the other processes of the run.

    Without a coordinator, JAX looks for one in the environment of Slurm, Kubernetes, MPI and TPU
    pods; if there is none, the run has one process.

    Args:
        rendezvous: address of the coordinator.
        on_note: receives a message before this process waits for the others.
        advice: what to do when another process has ended.

    Raises:
        BadInput: the other processes cannot be reached.
    """
    import jax

    if jax.distributed.is_initialized():
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM
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
    state = distributed_state()
    if state.num_processes > 1:
        heartbeat.watch(state.client, state.process_id, state.num_processes, advice)


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
    return bool(distributed_state().process_id == 0)  # JAX's own function starts its backend
