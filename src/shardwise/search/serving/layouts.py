"""Candidate engines: every legal mesh of a model on machines of one chip type, with placements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.hardware import Chip, Switched, System
from shardwise.hardware.chip import get
from shardwise.models import ModelConfig
from shardwise.models.checks import near_divisors
from shardwise.models.count import parameters
from shardwise.search.given import Choices, Fixed, check_fixed
from shardwise.search.machines import machines_of
from shardwise.search.model_sizes import (
    divisors,
    expert_problems,
    kv_heads_divide,
    n_experts,
    tensor_problems,
    tensor_widths,
    worth_sharding,
)
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.stages import fills_stages
from shardwise.units import bytes_per_element
from shardwise.vocabulary import KV_SPLITS, WEIGHT_LAYOUTS
from shardwise.workload import Serve

# Largest engines to try when the number of chips is free, in multiples of the smallest engine that
# holds the weights. No latency bound is known to need a larger one.
MAX_ENGINE_RATIO = 32
MAX_ENGINE_CHIPS = 256  # and in chips: the largest v5e slice
# Longest over shortest side of a slice; longer slices are tried only if there are no others.
MAX_ASPECT_RATIO = 3

# Options other than sizes of mesh roles that the user may fix: with string values (each with its
# legal values) and with numbers.
WORD_OPTIONS: dict[str, tuple[str, ...]] = {"weights": WEIGHT_LAYOUTS, "kv": KV_SPLITS}
NUMBER_OPTIONS = ("expert_tensor",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateEngines:
    """Engines placed on machines, as parallel arrays with one element for each engine.

    Args:
        systems: the machines that hold the engines.
        system_index: for each engine, the index in `systems` of its machine.
        meshes: for each engine, its mesh; `data` is the number of such engines on the machine.
        placements: for each engine, the physical placement of its mesh.
        sizes: mesh role -> array of its size in each engine.
        costs: costs of collectives in each engine.
    """

    systems: Sequence[System]
    system_index: Num
    meshes: Sequence[Mesh]
    placements: Sequence[Placement]
    sizes: Mapping[str, Num]
    costs: CollectiveCost

    def __len__(self) -> int:
        return len(self.meshes)

    @property
    def engine_chips(self) -> Num:
        """Number of chips of each engine."""
        return math.prod(size for role, size in self.sizes.items() if role != "data")

    def take(self, rows: Num) -> CandidateEngines:
        """The engines at the indices `rows`, which may repeat."""
        return CandidateEngines(
            systems=self.systems,
            system_index=self.system_index[rows],
            meshes=[self.meshes[row] for row in rows],
            placements=[self.placements[row] for row in rows],
            sizes={role: size[rows] for role, size in self.sizes.items()},
            costs=self.costs.take(rows),
        )


def machines(config: ModelConfig, chip: Chip, job: Serve) -> list[System]:
    """Machines of one chip type that a single engine may fill, smallest first.

    TPU slices longer than `MAX_ASPECT_RATIO` are among them only if there are no others.
    """
    weight_bytes = parameters(config).total * bytes_per_element(job.weights)
    systems = list(machines_of(chip))
    min_chips = 1
    for system in systems:
        if system.n_chips * capacity_bytes(chip) > weight_bytes:
            min_chips = system.n_chips
            break
    max_chips = min(MAX_ENGINE_RATIO * min_chips, max(MAX_ENGINE_CHIPS, 4 * min_chips))
    systems = [system for system in systems if min_chips <= system.n_chips <= max_chips]
    return [system for system in systems if _is_compact(system)] or systems


def _is_compact(system: System) -> bool:
    topology = system.topology
    if isinstance(topology, Switched):
        return True
    return max(topology.shape) <= MAX_ASPECT_RATIO * min(topology.shape)


def candidate_engines(
    config: ModelConfig,
    job: Serve,
    systems: Sequence[System],
    fixed: Fixed,
    *,
    fills_machine: bool,
) -> CandidateEngines | None:
    """Every legal engine under every useful placement, or None if no engine is legal.

    Args:
        fills_machine: whether one engine uses all chips of its machine. Otherwise the machine holds
            as many engines as fit.
    """
    import numpy as np

    system_index: list[int] = []
    meshes: list[Mesh] = []
    placements: list[Placement] = []
    for i, system in enumerate(systems):
        for mesh in engine_meshes(config, system, job, fixed, fills_machine=fills_machine):
            try:
                mesh_placements = place(*engine_machine(system, mesh), best=True)
            except NoStrategy:
                continue
            system_index += [i] * len(mesh_placements)
            meshes += [mesh] * len(mesh_placements)
            placements += mesh_placements
    if not placements:
        return None
    table = np.array([list(mesh.sizes.values()) for mesh in meshes], dtype=float)
    distinct: dict[Placement, int] = {}
    cost_index = []
    for placement in placements:
        cost_index.append(distinct.setdefault(placement, len(distinct)))
    return CandidateEngines(
        systems=systems,
        system_index=np.array(system_index),
        meshes=meshes,
        placements=placements,
        sizes={role: table[:, column] for column, role in enumerate(Mesh().sizes)},
        costs=CollectiveCost(list(distinct)).take(np.array(cost_index)),
    )


def engine_machine(system: System, mesh: Mesh) -> tuple[System, dict[str, int]]:
    """The machine, and the sizes of the mesh, for which an engine's placements are searched.

    On a torus, all engines of the machine are placed together, as one mesh with `data`. On GPUs,
    all engines have the same placement, so one is placed on a machine with just its chips.
    """
    if not isinstance(system.topology, Switched):
        return system, mesh.sizes
    n_chips = mesh.n_chips // mesh.data
    machine = System(
        name=system.name,
        chip=system.chip,
        topology=Switched(n_gpus=n_chips, domain=system.topology.domain),
        in_network_reduction=system.in_network_reduction,
    )
    return machine, {**mesh.sizes, "data": 1}


def engines_per_machine(system: System, n_chips: int) -> int:
    """Number of engines of `n_chips` chips each that a machine holds; 0 if they do not fit evenly.

    GPU engines smaller than a node stay inside one; larger ones use whole nodes.
    """
    topology = system.topology
    if not isinstance(topology, Switched):
        if system.n_chips % n_chips:
            return 0
        return system.n_chips // n_chips
    node_gpus = topology.gpus_per_node
    if n_chips <= node_gpus:
        return topology.n_gpus // node_gpus * (node_gpus // n_chips)
    if n_chips % node_gpus:
        return 0
    return topology.n_gpus // n_chips


def engine_meshes(
    config: ModelConfig,
    system: System,
    job: Serve,
    fixed: Fixed,
    *,
    fills_machine: bool,
) -> Iterator[Mesh]:
    """Every legal mesh of an engine; its `data` is the number of engines that the machine holds."""
    total_chips = system.n_chips
    max_sizes = dict(fixed.max_sizes)
    legal_sizes = _role_sizes(config, job, fixed, total_chips)
    for mesh_sizes in _size_choices(list(legal_sizes.items()), total_chips):
        n_chips = math.prod(mesh_sizes.values())
        n_engines = engines_per_machine(system, n_chips)
        if not n_engines or (fills_machine and n_chips != total_chips):
            continue
        is_asked_for = fixed.sizes or "weights" in fixed
        if not is_asked_for and not _is_common(system, n_chips, mesh_sizes):
            continue
        max_engines = max_sizes.get("data", n_engines)
        if fixed.get("data", n_engines) == n_engines and n_engines <= max_engines:
            yield Mesh(data=n_engines, **mesh_sizes)


def _is_common(system: System, n_chips: int, sizes: Mapping[str, int]) -> bool:
    """Whether operators launch such engines, so that a search proposes them unasked.

    GPUs of a node are divided evenly, or in powers of two where a rack has other numbers; and no
    serving engine combines context parallelism with a pipeline. Where GPUs of a node have links of
    their own, stages of a pipeline are whole nodes, as the engines' documentation advises. Weights
    in two dimensions, and prompts over a mesh axis, are those of JAX on TPUs.
    """
    if sizes["context"] > 1 and sizes["pipe"] > 1:
        return False
    topology = system.topology
    if not isinstance(topology, Switched):
        return True
    if sizes["fsdp"] * sizes["context"] > 1:
        return False
    node_gpus = topology.gpus_per_node
    if sizes["pipe"] > 1 and not has_only_pcie(system.chip):
        stage_gpus = n_chips // sizes["pipe"]
        if stage_gpus % topology.domain:
            return False
    is_power_of_two = n_chips & (n_chips - 1) == 0
    return n_chips > node_gpus or node_gpus % n_chips == 0 or is_power_of_two


def has_only_pcie(chip: Chip) -> bool:
    """Whether GPUs of a node are joined by nothing faster than PCIe."""
    node, pcie = get(chip, "node.egress"), get(chip, "pcie.bandwidth")
    return isinstance(node, float) and isinstance(pcie, float) and node <= pcie


def _role_sizes(
    config: ModelConfig, job: Serve, fixed: Fixed, total_chips: int
) -> dict[str, list[int]]:
    """Mesh role -> its legal sizes, for every role except `data`, independently of the others."""
    max_sizes = dict(fixed.max_sizes)
    common_width = math.gcd(*tensor_widths(config).values())
    powers_of_two = [2**exponent for exponent in range(1, 17)]
    sizes = {
        "tensor": [n for n in divisors(common_width) if kv_heads_divide(config, n)],
        "expert": divisors(n_experts(config)),
        "pipe": [n for n in range(1, config.n_layers + 1) if fills_stages(config.n_layers, n)],
        "context": [1, *(n for n in powers_of_two if worth_sharding(job.prompt_tokens, n))],
        "fsdp": [1],
    }
    if fixed.get("weights", "2d") != "stationary":
        sizes["fsdp"] = divisors(config.d_model)
    for role, legal_sizes in sizes.items():
        limit = max_sizes.get(role, total_chips)
        if role in fixed:
            size = int(fixed[role])
            is_legal = size in legal_sizes or role == "context"
            legal_sizes = [size] if is_legal else []
        sizes[role] = [size for size in legal_sizes if size <= limit]
    return sizes


def _size_choices(
    legal_sizes: Sequence[tuple[str, Sequence[int]]], max_chips: int
) -> Iterator[dict[str, int]]:
    """Every combination of one size per mesh role whose product is at most `max_chips`.

    Args:
        legal_sizes: (mesh role, its legal sizes in ascending order).
    """
    if not legal_sizes:
        yield {}
        return
    role, role_sizes = legal_sizes[0]
    for size in itertools.takewhile(lambda size: size <= max_chips, role_sizes):
        for other_sizes in _size_choices(legal_sizes[1:], max_chips // size):
            yield {role: size, **other_sizes}


def read_fixed(chosen: Choices | None, max_sizes: Mapping[str, int] | None = None) -> Fixed:
    """Check the sizes and options that the user fixed for a search.

    Raises:
        UnknownName: an unknown option, or an unknown value of an option.
        BadShape: a size is not a positive integer.
    """
    return check_fixed(chosen, max_sizes, WORD_OPTIONS, NUMBER_OPTIONS)


def problems(config: ModelConfig, system: System | None, fixed: Fixed) -> list[str]:
    """Messages about fixed sizes of an engine that are not legal, with sizes that are."""
    sizes = {**Mesh().sizes, **fixed.sizes}
    return [
        *tensor_problems(config, sizes["tensor"]),
        *expert_problems(config, sizes["expert"]),
        *_other_problems(config, system, sizes),
    ]


def _other_problems(
    config: ModelConfig, system: System | None, sizes: Mapping[str, int]
) -> Iterator[str]:
    """Messages about illegal `pipe` and `fsdp`, and about the total number of chips."""
    pipe = sizes["pipe"]
    if pipe > config.n_layers or not fills_stages(config.n_layers, pipe):
        yield f"pipe {pipe} does not divide {config.n_layers} layers into even stages."
    fsdp = sizes["fsdp"]
    if config.d_model % fsdp:
        yield (
            f"fsdp {fsdp} does not divide d_model {config.d_model:,}. Sizes that do: "
            f"{near_divisors(config.d_model, fsdp)}."
        )
    n_chips = math.prod(sizes.values())
    if system is None:
        return
    if n_chips > system.n_chips or not engines_per_machine(system, n_chips // sizes["data"]):
        yield (
            f"engines with {n_chips:,} chips in total do not fit the {system.n_chips:,} chips of "
            f"{system.name} evenly."
        )
