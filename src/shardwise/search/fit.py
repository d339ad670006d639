"""The smallest machine that a model fits on, by the memory that a plan counts.

*How to Scale Your Model*, §8, asks the same for TPUs: the smallest slice for a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise import units
from shardwise.errors import DoesNotFit
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.training.optimizer import bytes_per_parameter
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig, count
from shardwise.search.machines import machines_between, machines_of
from shardwise.search.serving.room import rooms
from shardwise.workload import Serve, Train

# Sequences of a training step for each chip, of which a chip takes one at a time. With several,
# gradients of microbatches are summed, as in most runs.
SEQUENCES_PER_CHIP = 4
# Machines with more times the chips that hold the bare state are not tried: what does not fit there
# is not the state.
MAX_RATIO = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A machine, and what a job leaves on it.

    Args:
        system: name of the machine, e.g. `v5e:4x4`.
        hbm_bytes: HBM of all chips of the machine.
        state: component of the state -> its bytes on the whole machine: "weights", and "gradients"
            and "optimizer" in training or "kv_cache" in serving.
        fits: whether a plan of the job fits.
        left_bytes: bytes that the roomiest plan leaves on all chips, beside activations, copies and
            what is kept free; negative if the job is too large.
        sequences: maximum number of sequences of the job's context length; None in training.
        kv_bytes_per_sequence: KV cache of one sequence; None in training.
        batch: sequences of the training step that was tried; None in serving.
    """

    system: str
    n_chips: int
    hbm_bytes: float
    state: dict[str, float]
    fits: bool
    left_bytes: float
    sequences: int | None = None
    kv_bytes_per_sequence: float | None = None
    batch: int | None = None

    @property
    def state_bytes(self) -> float:
        """Bytes of the whole state."""
        return sum(self.state.values())


def fit(model: ModelConfig, chip: Chip, job: Train | Serve, *, ideal: bool = False) -> Fit:
    """The smallest slice or GPU count on which a plan of a job fits.

    In serving the machine holds `job.batch` sequences, or one sequence if the job states no batch.
    In training the batch of the job does not matter: a step has `SEQUENCES_PER_CHIP` sequences for
    each chip.

    Args:
        model: the model.
        chip: the chip.
        job: the workload.
        ideal: whether an engine's memory is that of weights and KV cache alone, as in the book.

    Raises:
        DoesNotFit: the job does not fit on any machine with this type of chip.
        UnknownFigure: the chip's file does not state its HBM capacity.
    """
    capacity = capacity_bytes(chip)
    state_bytes = sum(_state_bytes(model, job).values())
    smallest = 0
    previous = None
    largest = f"{chip.name} has no machine"
    for system in machines_of(chip):
        largest = f"the largest, {system.name}, has {units.show_gib(system.n_chips * capacity)}"
        if system.n_chips * capacity < state_bytes:
            previous = system
            continue
        smallest = smallest or system.n_chips
        if system.n_chips > MAX_RATIO * smallest:
            break
        fitted = fit_on(model, system, job, ideal=ideal)
        if fitted.fits:
            between = machines_between(previous, system) if previous else ()
            holding = (s for s in between if s.n_chips * capacity >= state_bytes)
            fits = (fit_on(model, other, job, ideal=ideal) for other in holding)
            return next((fit for fit in fits if fit.fits), fitted)
        previous = system
    needs = f"does not fit: {model.name} needs {units.show_gib(state_bytes)}"
    if smallest:
        needs += ", and room for what it computes"
    raise DoesNotFit(f"{needs}; {largest}.")


def fit_on(model: ModelConfig, system: System, job: Train | Serve, *, ideal: bool = False) -> Fit:
    """The fit of a job on one machine, on which it may not fit."""
    state = _state_bytes(model, job)
    hbm_bytes = system.n_chips * capacity_bytes(system.chip)
    left_bytes = hbm_bytes - sum(state.values())
    if isinstance(job, Train):
        from shardwise.search.training.rank import most_left_bytes  # needs NumPy

        batch = SEQUENCES_PER_CHIP * system.n_chips
        left_a_chip = most_left_bytes(model, system, replace(job, batch=batch))
        return Fit(
            system=system.name,
            n_chips=system.n_chips,
            hbm_bytes=hbm_bytes,
            state=state,
            fits=left_a_chip >= 0,
            left_bytes=min(left_bytes, left_a_chip * system.n_chips),
            batch=batch,
        )
    engine_rooms = rooms(model, [system], job, ideal=ideal)
    roomiest = next(engine_rooms, None)
    holder = roomiest
    if roomiest and not roomiest.holds(job.batch):
        holder = next((room for room in engine_rooms if room.holds(job.batch)), None)
    if roomiest:
        left_bytes = (holder or roomiest).left_bytes(job.batch or 1)
    return Fit(
        system=system.name,
        n_chips=system.n_chips,
        hbm_bytes=hbm_bytes,
        state=state,
        fits=holder is not None and holder.holds(job.batch),
        left_bytes=left_bytes,
        sequences=roomiest.sequences if roomiest else 0,
        kv_bytes_per_sequence=float(count.kv_cache_bytes(model, job.context, job.kv)),
    )


def _state_bytes(model: ModelConfig, job: Train | Serve) -> dict[str, float]:
    """Component of a job's state -> its bytes on the whole machine."""
    params = count.parameters(model).total
    if isinstance(job, Train):
        components = bytes_per_parameter(model, job)
        return {name: params * n_bytes for name, n_bytes in components.items()}
    kv_bytes = (job.batch or 1) * count.kv_cache_bytes(model, job.context, job.kv)
    return {"weights": params * units.bytes_per_element(job.weights), "kv_cache": float(kv_bytes)}
