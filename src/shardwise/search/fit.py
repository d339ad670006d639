"""The smallest machine that holds a model, and what is left on it. Book §8 (smallest slice)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise import units
from shardwise.errors import DoesNotFit
from shardwise.estimate.training.optimizer import state_bytes
from shardwise.formulas.inference import max_batch
from shardwise.hardware import Chip, legal_slices
from shardwise.models import ModelConfig, count
from shardwise.workload import Serve, Train

LARGEST = 2**17  # chips of a switched machine that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The smallest machine for one job.

    Args:
        system: its name, `v5e:4x4`.
        held: bytes that must lie somewhere, by part.
        left_bytes: HBM of the whole machine beyond them.
        sequences: sequences of the asked context whose KV cache fits (serving), or None.
        tokens_per_chip: tokens per chip whose layer inputs fit (training, remat full), or None.
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

    Training: weights, gradients and optimizer state, sharded over all chips, and one token of
    activations per chip at least. Serving: the weights, and the KV cache of `job.batch` sequences
    (one when not given).

    Raises:
        DoesNotFit: the largest machine of this chip is too small.
        UnknownFigure: the chip has no HBM figure.
    """
    hbm = chip.need("hbm_bytes")
    held = _held(model, job)
    total = sum(held.values())
    largest = None
    for name, n_chips in sizes(chip):
        largest = (name, n_chips)
        if n_chips * hbm >= total + n_chips * _token_bytes(model, job):
            return _found(model, job, name, n_chips, hbm, held)
    where = f"the largest, {largest[0]}, has" if largest else "there is"
    have = units.show_gib(largest[1] * hbm) if largest else "no machine"
    raise DoesNotFit(f"does not fit: {model.name} needs {units.show_gib(total)}; {where} {have}.")


def sizes(chip: Chip) -> Iterator[tuple[str, int]]:
    """Machines of a chip, smallest first: its slices, or 1, 2, 4 ... GPUs and then whole nodes."""
    if chip.ici:
        for torus in legal_slices(chip):
            yield f"{chip.name}:{torus}", torus.n_chips
        return
    domain = chip.node.n_gpus if chip.node else 1
    n = 1
    while n <= LARGEST:
        yield f"{chip.name}:{n}", n
        n = min(2 * n, domain) if n < domain else n + domain if n < 8 * domain else 2 * n


def _held(model: ModelConfig, job: Train | Serve) -> dict[str, float]:
    params = count.parameters(model).total
    if isinstance(job, Train):
        return {
            "weights": params * job.weight_bytes,
            "gradients": params * units.bytes_per_element(job.gradients),
            "optimizer": params * state_bytes(model, job),
        }
    kv = (job.batch or 1) * count.kv_cache_bytes(model, job.context, job.kv)
    return {"weights": params * units.bytes_per_element(job.weights), "kv_cache": float(kv)}


def _token_bytes(model: ModelConfig, job: Train | Serve) -> float:
    """Layer inputs of one token, which a chip must hold to train at all (remat full)."""
    if isinstance(job, Serve):
        return 0.0
    return model.n_layers * model.d_model * job.activation_bytes


def _found(
    model: ModelConfig,
    job: Train | Serve,
    name: str,
    n_chips: int,
    hbm: float,
    held: dict[str, float],
) -> Fit:
    left = n_chips * hbm - sum(held.values())
    if isinstance(job, Train):
        return Fit(
            system=name,
            n_chips=n_chips,
            hbm_bytes=n_chips * hbm,
            held=held,
            left_bytes=left,
            tokens_per_chip=int(left / n_chips / _token_bytes(model, job)),
        )
    sequence = float(count.kv_cache_bytes(model, job.context, job.kv))
    return Fit(
        system=name,
        n_chips=n_chips,
        hbm_bytes=n_chips * hbm,
        held=held,
        left_bytes=left,
        sequences=int(max_batch(n_chips, hbm, held["weights"], sequence)),
        kv_bytes_per_sequence=sequence,
    )
