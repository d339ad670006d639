"""The time of a training step: bounds from the roofline, expectation from overlap rules.

    lower    = max(T_math, T of each role's collectives)      everything hides everything
    upper    = T_math + sum of the roles' collectives         nothing hides
    expected = max(T_math, hidden roles) + exposed roles      by the rule below

Book §5; the sum rule is the one of its first edition, the maximum that of the later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum
from shardwise.estimate.memory import Memory, held_parameters, training_memory
from shardwise.estimate.prices import Prices
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.ops.program import Matmul, Step, Transfer
from shardwise.strategy.rules import Rules
from shardwise.workload import Train

# Weight gathers are prefetched and gradients reduced while other layers compute; what a matmul
# waits for inside its layer (activations, keys and values) is not hidden.
HIDDEN_ROLES = ("fsdp", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of one step by what spends them, and memory. Numbers, or arrays over strategies."""

    compute_s: Num
    hbm_s: Num
    roofline_s: Num
    comm_s: Mapping[str, Num]
    memory: Memory

    @property
    def lower(self) -> Num:
        """Everything overlapped."""
        return maximum(self.roofline_s, 0.0, *self.comm_s.values())

    @property
    def upper(self) -> Num:
        """Nothing overlapped."""
        return self.roofline_s + sum(self.comm_s.values())

    @property
    def hidden_s(self) -> Num:
        """Collectives that run beside the layers' compute."""
        return sum((self.comm_s.get(r, 0.0) for r in HIDDEN_ROLES), 0.0)

    @property
    def critical_s(self) -> Num:
        """Collectives that a layer waits for."""
        return sum((t for r, t in self.comm_s.items() if r not in HIDDEN_ROLES), 0.0)

    @property
    def expected(self) -> Num:
        """Hidden roles overlap the compute, the others add."""
        return maximum(self.roofline_s, self.hidden_s) + self.critical_s


def element_bytes(name: str, weights: frozenset[str], job: Train) -> float:
    """Bytes per element of an array of the step, by what it is."""
    if name in weights:
        return job.weight_bytes
    if name.startswith("d") and name[1:] in weights:
        return units.bytes_per_element(job.gradients)
    return job.activation_bytes


def matmul_hbm_bytes(
    matmul: Matmul, weights: frozenset[str], job: Train, mesh: Mapping[str, Num]
) -> Num:
    """Bytes that one chip reads and writes for a matmul."""
    return sum(n * element_bytes(name, weights, job) for name, n in matmul.elements(mesh))


def transfer_bytes(
    transfer: Transfer, weights: frozenset[str], job: Train, mesh: Mapping[str, Num]
) -> Num:
    """V of one occurrence of a collective, in bytes."""
    return transfer.elements(mesh) * element_bytes(transfer.move.before.name, weights, job)


def optimizer_hbm_bytes(
    config: ModelConfig, job: Train, rules: Rules, mesh: Mapping[str, Num]
) -> Num:
    """Weights and moments are read and written, gradients read, once a step."""
    state = 2 * (job.weight_bytes + job.optimizer_bytes) + units.bytes_per_element(job.gradients)
    return held_parameters(config, rules, mesh) * state


def step_cost(
    config: ModelConfig,
    job: Train,
    step: Step,
    rules: Rules,
    chip: Chip,
    mesh: Mapping[str, Num],
    prices: Prices,
    *,
    remat: str,
    n_microbatches: Num = 1,
) -> StepCost:
    """Time and memory of one step on one mesh, or on arrays of meshes.

    `step` holds the works of one microbatch; gradients accumulate over `n_microbatches`.
    """
    peak, bandwidth = chip.peak(job.compute), chip.need("hbm_bytes_per_s")
    weights = step.weights
    compute: Num = 0.0
    hbm: Num = optimizer_hbm_bytes(config, job, rules, mesh) / bandwidth
    roofline: Num = hbm
    for matmul in step.matmuls:
        math_s = n_microbatches * matmul.flops(mesh) / peak
        hbm_s = n_microbatches * matmul_hbm_bytes(matmul, weights, job, mesh) / bandwidth
        compute, hbm = compute + math_s, hbm + hbm_s
        roofline = roofline + maximum(math_s, hbm_s)
    comm: dict[str, Num] = {}
    for transfer in step.transfers:
        price = prices.of(transfer.move.kind, transfer.move.axes)
        n_bytes = transfer_bytes(transfer, weights, job, mesh)
        seconds = transfer.times(n_microbatches) * price.time_s(n_bytes)
        comm[transfer.role] = comm.get(transfer.role, 0.0) + seconds
    memory = training_memory(config, job, step, rules, mesh, chip.need("hbm_bytes"), remat=remat)
    return StepCost(compute_s=compute, hbm_s=hbm, roofline_s=roofline, comm_s=comm, memory=memory)
