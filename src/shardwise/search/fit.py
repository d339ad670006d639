"""The smallest machine that holds a model, and the HBM left on it.

*How to Scale Your Model*, §8, asks the same for TPUs: the smallest slice for a model.
"""

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

MAX_CHIPS = 2**17  # GPU counts are tried up to this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The smallest machine for one job.

    Args:
        system: name of the machine, e.g. `v5e:4x4`.
        hbm_bytes: HBM of all chips of the machine.
        held: component of the state -> its bytes on the whole machine: "weights", and "gradients"
            and "optimizer" in training or "kv_cache" in serving.
        left_bytes: `hbm_bytes` minus the bytes of the state.
        sequences: maximum number of sequences of the job's context length; None in training.
        tokens_per_chip: maximum number of tokens per chip with full remat; None in serving.
        kv_bytes_per_sequence: KV cache of one sequence; None in training.
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
        """Bytes of the whole state."""
        return sum(self.held.values())


def fit(model: ModelConfig, chip: Chip, job: Train | Serve) -> Fit:
    """The smallest slice or GPU count that holds the model's state for a job.

    In training the state is weights, gradients and optimizer state, sharded over all chips; each
    chip also needs space for the activations of one token. In serving it is the weights and the KV
    cache of `job.batch` sequences, or of one sequence if the job states no batch.

    Raises:
        DoesNotFit: the state does not fit even the largest machine with this type of chip.
        UnknownFigure: the chip's file does not state its HBM capacity.
    """
    chip_hbm_bytes = chip.need("hbm_bytes")
    bytes_by_component = _state_bytes(model, job)
    total = sum(bytes_by_component.values())
    largest = f"{chip.name} has no machine"
    for name, n_chips in machine_sizes(chip):
        if n_chips * chip_hbm_bytes >= total + n_chips * _activation_bytes_per_token(model, job):
            return _fit_record(model, job, name, n_chips, chip_hbm_bytes, bytes_by_component)
        largest = f"the largest, {name}, has {units.show_gib(n_chips * chip_hbm_bytes)}"
    raise DoesNotFit(f"does not fit: {model.name} needs {units.show_gib(total)}; {largest}.")


def machine_sizes(chip: Chip) -> Iterator[tuple[str, int]]:
    """Machines that can be built from one type of chip, as (name, number of chips), smallest first.

    For TPUs, every legal slice. For GPUs, 1, 2, 4 ... up to a full node, then 2, 3 ... 8 nodes,
    then repeated doubling up to `MAX_CHIPS`.
    """
    if chip.ici:
        for torus in legal_slices(chip):
            yield f"{chip.name}:{torus}", torus.n_chips
        return
    node_gpus = chip.node.n_gpus if chip.node else 1
    n_chips = 1
    while n_chips <= MAX_CHIPS:
        yield f"{chip.name}:{n_chips}", n_chips
        if n_chips < node_gpus:
            n_chips = min(2 * n_chips, node_gpus)
        elif n_chips < 8 * node_gpus:
            n_chips += node_gpus
        else:
            n_chips *= 2


def _state_bytes(model: ModelConfig, job: Train | Serve) -> dict[str, float]:
    """Component of a job's state -> its bytes on the whole machine."""
    params = count.parameters(model).total
    if isinstance(job, Train):
        return {
            "weights": params * job.weight_bytes,
            "gradients": params * units.bytes_per_element(job.gradients),
            "optimizer": params * optimizer_state_bytes(model, job),
        }
    kv_bytes = (job.batch or 1) * count.kv_cache_bytes(model, job.context, job.kv)
    return {"weights": params * units.bytes_per_element(job.weights), "kv_cache": float(kv_bytes)}


def _activation_bytes_per_token(model: ModelConfig, job: Train | Serve) -> float:
    """Bytes of the activations saved per token in training with full remat: every layer's input.

    0 in serving, which saves no activations.
    """
    if isinstance(job, Serve):
        return 0.0
    return model.n_layers * model.d_model * job.activation_bytes


def _fit_record(
    model: ModelConfig,
    job: Train | Serve,
    machine_name: str,
    n_chips: int,
    chip_hbm_bytes: float,
    bytes_by_component: dict[str, float],
) -> Fit:
    """Make the `Fit` of a machine on which the state fits."""
    left_bytes = n_chips * chip_hbm_bytes - sum(bytes_by_component.values())
    if isinstance(job, Train):
        return Fit(
            system=machine_name,
            n_chips=n_chips,
            hbm_bytes=n_chips * chip_hbm_bytes,
            held=bytes_by_component,
            left_bytes=left_bytes,
            tokens_per_chip=int(left_bytes / n_chips / _activation_bytes_per_token(model, job)),
        )
    kv_bytes = float(count.kv_cache_bytes(model, job.context, job.kv))
    return Fit(
        system=machine_name,
        n_chips=n_chips,
        hbm_bytes=n_chips * chip_hbm_bytes,
        held=bytes_by_component,
        left_bytes=left_bytes,
        sequences=int(max_batch(n_chips, chip_hbm_bytes, bytes_by_component["weights"], kv_bytes)),
        kv_bytes_per_sequence=kv_bytes,
    )
