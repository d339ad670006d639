"""Candidate engines: meshes that a model and the machines of one chip allow, with placements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import NoStrategy
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.hardware import Chip, Switched, System, legal_slices
from shardwise.models import ModelConfig
from shardwise.models.checks import near_divisors
from shardwise.models.count import parameters
from shardwise.search import fit
from shardwise.search.given import Choices, Fixed, checked
from shardwise.search.model_sizes import (
    divisors,
    expert_problems,
    kv_heads_divide,
    n_experts,
    tensor_problems,
    tensor_widths,
    worth_cutting,
)
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.stages import fills_stages
from shardwise.units import bytes_per_element
from shardwise.vocabulary import KV_SPLITS, WEIGHT_LAYOUTS
from shardwise.workload import Serve

# Limits of the engines to try when the number of chips is free: at most this many times the chips
# of the smallest engine that holds the weights, as no latency bound is known to need more.
MAX_ENGINE_RATIO = 32
MAX_ENGINE_CHIPS = 256  # the largest v5e slice
MAX_ASPECT_RATIO = 3  # of a slice's sides; longer slices are tried only if there are no others

WORD_OPTIONS: dict[str, tuple[str, ...]] = {"weights": WEIGHT_LAYOUTS, "kv": KV_SPLITS}
NUMBER_OPTIONS = ("expert_tensor",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateEngines:
    """Engines placed on machines, as parallel arrays with one element for each engine.

    Args:
        systems: the machines.
        system_index: index in `systems` of each engine's machine.
        meshes: mesh of each engine, with `data` the number of such engines on the machine.
        sizes: mesh role -> chips.
        costs: time of collectives.
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
        """Chips of one engine."""
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
    """The machines of a chip that a single engine may fill, smallest first."""
    weight_bytes = parameters(config).total * bytes_per_element(job.weights)
    min_chips = 1
    for _, n_chips in fit.sizes(chip):
        if n_chips * chip.need("hbm_bytes") > weight_bytes:
            min_chips = n_chips
            break
    max_chips = min(MAX_ENGINE_RATIO * min_chips, max(MAX_ENGINE_CHIPS, 4 * min_chips))
    if chip.ici:
        return _slices(chip, min_chips, max_chips)
    return _switched_machines(chip, min_chips, max_chips)


def _slices(chip: Chip, min_chips: int, max_chips: int) -> list[System]:
    slices = [torus for torus in legal_slices(chip) if min_chips <= torus.n_chips <= max_chips]
    compact = [torus for torus in slices if max(torus.shape) <= MAX_ASPECT_RATIO * min(torus.shape)]
    systems = []
    for torus in compact or slices:
        systems.append(System(name=f"{chip.name}:{torus}", chip=chip, topology=torus))
    return systems


def _switched_machines(chip: Chip, min_chips: int, max_chips: int) -> list[System]:
    domain = None
    if chip.node:
        domain = chip.node.n_gpus
    if not chip.scale_out:
        # The bandwidth beyond a node, or beyond a single card, is unknown.
        max_chips = min(max_chips, domain or 1)
    systems = []
    for _, n_chips in fit.sizes(chip):
        if min_chips <= n_chips <= max_chips:
            topology = Switched(n_gpus=n_chips, domain=domain or n_chips)
            systems.append(System(name=f"{chip.name}:{n_chips}", chip=chip, topology=topology))
    return systems


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
        fills_machine: an engine uses all chips of its machine. Otherwise the machine holds as many
            engines as fit.
    """
    import numpy as np

    system_index: list[int] = []
    meshes: list[Mesh] = []
    placements: list[Placement] = []
    for i, system in enumerate(systems):
        for mesh in engine_meshes(config, system, job, fixed, fills_machine=fills_machine):
            try:
                of_mesh = place(*engine_machine(system, mesh), best=True)
            except NoStrategy:
                continue
            system_index += [i] * len(of_mesh)
            meshes += [mesh] * len(of_mesh)
            placements += of_mesh
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
    """The (machine, mesh sizes) on which an engine is placed.

    On a torus all replicas are placed together. On switches all replicas have the same placement,
    so only one is placed, on a machine of its own size.
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
    """Number of engines of `n_chips` chips that fit on a machine; 0 if `n_chips` does not fit."""
    topology = system.topology
    if not isinstance(topology, Switched):
        if system.n_chips % n_chips:
            return 0
        return system.n_chips // n_chips
    domain = min(topology.domain, topology.n_gpus)
    if n_chips <= domain:
        return topology.n_gpus // domain * (domain // n_chips)
    if n_chips % domain:
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
    """Every legal mesh of an engine, with `data` the number of replicas that fit on the machine."""
    total_chips = system.n_chips
    max_sizes = dict(fixed.max_sizes)
    options = _role_sizes(config, job, fixed, total_chips)
    for sizes in _products(list(options.items()), total_chips):
        n_chips = math.prod(sizes.values())
        replicas = engines_per_machine(system, n_chips)
        if not replicas or (fills_machine and n_chips != total_chips):
            continue
        if fixed.get("data", replicas) == replicas and replicas <= max_sizes.get("data", replicas):
            yield Mesh(data=replicas, **sizes)


def _role_sizes(
    config: ModelConfig, job: Serve, fixed: Fixed, total_chips: int
) -> dict[str, list[int]]:
    """The legal sizes of every mesh role except `data`, each role independently."""
    max_sizes = dict(fixed.max_sizes)
    common_width = math.gcd(*tensor_widths(config).values())
    powers_of_two = [2**exponent for exponent in range(1, 17)]
    sizes = {
        "tensor": [n for n in divisors(common_width) if kv_heads_divide(config, n)],
        "expert": divisors(n_experts(config)),
        "pipe": [n for n in range(1, config.n_layers + 1) if fills_stages(config.n_layers, n)],
        "context": [1, *(n for n in powers_of_two if worth_cutting(job.prompt_tokens, n))],
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


def _products(
    options: Sequence[tuple[str, Sequence[int]]], max_product: int
) -> Iterator[dict[str, int]]:
    """Every choice of one size for each role whose product is at most `max_product`."""
    if not options:
        yield {}
        return
    role, role_sizes = options[0]
    for size in itertools.takewhile(lambda size: size <= max_product, role_sizes):
        for other_sizes in _products(options[1:], max_product // size):
            yield {role: size, **other_sizes}


def read_fixed(chosen: Choices | None, max_sizes: Mapping[str, int] | None = None) -> Fixed:
    """Check the sizes and options that the user fixed for a search.

    Raises:
        UnknownName: an unknown option, or an unknown value of an option.
        BadShape: a size is not a positive integer.
    """
    return checked(chosen, max_sizes, WORD_OPTIONS, NUMBER_OPTIONS)


def problems(config: ModelConfig, system: System | None, fixed: Fixed) -> list[str]:
    """Every reason why the fixed sizes of an engine are not legal, with sizes that are."""
    sizes = {**Mesh().sizes, **fixed.sizes}
    return [
        *tensor_problems(config, sizes["tensor"]),
        *expert_problems(config, sizes["expert"]),
        *_other_problems(config, system, sizes),
    ]


def _other_problems(
    config: ModelConfig, system: System | None, sizes: Mapping[str, int]
) -> Iterator[str]:
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
