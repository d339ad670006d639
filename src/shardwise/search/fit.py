"""The smallest machine that holds a model, and what is left on it. Book §8 (smallest slice)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise import units
from shardwise.errors import DoesNotFit
from shardwise.estimate.training.optimizer import state_bytes as optimizer_state_bytes
from shardwise.formulas.inference import max_batch
from shardwise.hardware import Chip, legal_slices
from shardwise.models import ModelConfig, count
from shardwise.workload import Serve, Train

MAX_CHIPS = 2**17  # the most GPUs to try


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The smallest machine for one job.

    Args:
        system: name of the machine, `v5e:4x4`.
        held: bytes of the job's state: weights, gradients, optimizer or KV cache.
        left_bytes: free HBM of the whole machine beside the state.
        sequences: maximum number of sequences of the job's context length (serving), or None.
        tokens_per_chip: maximum number of tokens per chip (training with full remat), or None.
        kv_bytes_per_sequence: KV cache of one sequence (serving), or None.
    """

    system: str
    n_chips: int
    hbm_bytes: float
    held: dict[str, float]
    left_bytes: float
    sequences: int | None = None
    tokens_per_chip: int | None = None
    kv_bytes_per_sequence: float | None = None

    @property
    def held_bytes(self) -> float:
        """The sum of the parts."""
        return sum(self.held.values())


def fit(model: ModelConfig, chip: Chip, job: Train | Serve) -> Fit:
    """The smallest slice or GPU count that holds the model's state for a job.

    Training: weights, gradients and optimizer state, sharded over all chips, and the activations
    of at least one token per chip. Serving: the weights, and the KV cache of `job.batch` sequences
    (one when not given).

    Raises:
        DoesNotFit: the largest machine of this chip is too small.
        UnknownFigure: the chip has no HBM figure.
    """
    hbm_bytes = chip.need("hbm_bytes")
    state_bytes = _state_bytes(model, job)
    total = sum(state_bytes.values())
    limit = f"{chip.name} has no machine"
    for name, n_chips in sizes(chip):
        if n_chips * hbm_bytes >= total + n_chips * _activation_bytes_per_token(model, job):
            return _fit(model, job, name, n_chips, hbm_bytes, state_bytes)
        limit = f"the largest, {name}, has {units.show_gib(n_chips * hbm_bytes)}"
    raise DoesNotFit(f"does not fit: {model.name} needs {units.show_gib(total)}; {limit}.")


def sizes(chip: Chip) -> Iterator[tuple[str, int]]:
    """Machines of a chip as (name, number of chips), smallest first: the slices of a TPU, or 1, 2,
    4 ... GPUs up to a node, then whole nodes."""
    if chip.ici:
        for torus in legal_slices(chip):
            yield f"{chip.name}:{torus}", torus.n_chips
        return
    domain = chip.node.n_gpus if chip.node else 1
    n_chips = 1
    while n_chips <= MAX_CHIPS:
        yield f"{chip.name}:{n_chips}", n_chips
        if n_chips < domain:
            n_chips = min(2 * n_chips, domain)
        elif n_chips < 8 * domain:
            n_chips += domain
        else:
            n_chips *= 2


def _state_bytes(model: ModelConfig, job: Train | Serve) -> dict[str, float]:
    """Bytes of the state of a job, by part."""
    params = count.parameters(model).total
    if isinstance(job, Train):
        return {
            "weights": params * job.weight_bytes,
            "gradients": params * units.bytes_per_element(job.gradients),
            "optimizer": params * optimizer_state_bytes(model, job),
        }
    kv = (job.batch or 1) * count.kv_cache_bytes(model, job.context, job.kv)
    return {"weights": params * units.bytes_per_element(job.weights), "kv_cache": float(kv)}


def _activation_bytes_per_token(model: ModelConfig, job: Train | Serve) -> float:
    """Bytes of the layer inputs of one token: what training with full remat keeps."""
    if isinstance(job, Serve):
        return 0.0
    return model.n_layers * model.d_model * job.activation_bytes


def _fit(
    model: ModelConfig,
    job: Train | Serve,
    name: str,
    n_chips: int,
    hbm_bytes: float,
    state_bytes: dict[str, float],
) -> Fit:
    left_bytes = n_chips * hbm_bytes - sum(state_bytes.values())
    if isinstance(job, Train):
        return Fit(
            system=name,
            n_chips=n_chips,
            hbm_bytes=n_chips * hbm_bytes,
            held=state_bytes,
            left_bytes=left_bytes,
            tokens_per_chip=int(left_bytes / n_chips / _activation_bytes_per_token(model, job)),
        )
    kv_bytes = float(count.kv_cache_bytes(model, job.context, job.kv))
    return Fit(
        system=name,
        n_chips=n_chips,
        hbm_bytes=n_chips * hbm_bytes,
        held=state_bytes,
        left_bytes=left_bytes,
        sequences=int(max_batch(n_chips, hbm_bytes, state_bytes["weights"], kv_bytes)),
        kv_bytes_per_sequence=kv_bytes,
    )
