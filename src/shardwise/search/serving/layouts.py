"""Engines that a model and machines of one chip admit: their meshes, and where they lie."""

from __future__ import annotations

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
    kv_heads_divide,
    n_experts,
    tensor_widths,
    worth_cutting,
)
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.stages import filled
from shardwise.vocabulary import KV_SPLITS, WEIGHT_LAYOUTS
from shardwise.workload import Serve

# Engines of a chip without a size: up to 32 times the smallest that holds the weights, which no
# bound on latency is known to need, and 256 chips, the largest slice of v5e.
TIMES, MOST_CHIPS = 32, 256
THIN = 3  # slices whose sides differ by more are left to those who ask for them

WORDS: dict[str, tuple[str, ...]] = {"weights": WEIGHT_LAYOUTS, "kv": KV_SPLITS}
NUMBERS = ("expert_tensor",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Engines on machines: one element each, of all forms.

    Args:
        systems: the machines; `system` has the index of each element's.
        meshes: of one engine; `data` counts the engines that the machine has room for.
        sizes: role -> chips.
        costs: of collectives.
    """

    systems: Sequence[System]
    system: Num
    meshes: Sequence[Mesh]
    placements: Sequence[Placement]
    sizes: Mapping[str, Num]
    costs: CollectiveCost

    def __len__(self) -> int:
        return len(self.meshes)

    @property
    def engine_chips(self) -> Num:
        """Chips of one engine."""
        return math.prod(n for role, n in self.sizes.items() if role != "data")

    def take(self, rows: Num) -> Sites:
        """Some of the elements, or some of them several times."""
        return Sites(
            systems=self.systems,
            system=self.system[rows],
            meshes=[self.meshes[i] for i in rows],
            placements=[self.placements[i] for i in rows],
            sizes={role: n[rows] for role, n in self.sizes.items()},
            costs=self.costs.take(rows),
        )


def machines(config: ModelConfig, chip: Chip, job: Serve) -> list[System]:
    """Machines of a chip, each of which one engine fills, smallest first."""
    held = parameters(config).total * _weight_bytes(job)
    holds = next((n for _, n in fit.sizes(chip) if n * chip.need("hbm_bytes") > held), 1)
    most = min(TIMES * holds, max(MOST_CHIPS, 4 * holds))
    if not chip.ici:
        domain = chip.node.n_gpus if chip.node else None
        # Without a figure for what joins nodes, or cards, an engine ends where links do.
        joined = most if chip.scale_out else domain if chip.node else 1
        counts = [n for _, n in fit.sizes(chip) if holds <= n <= min(most, joined or 1)]
        return [
            System(
                name=f"{chip.name}:{n}",
                chip=chip,
                topology=Switched(n_gpus=n, domain=domain or n),
            )
            for n in counts
        ]
    slices = [s for s in legal_slices(chip) if holds <= s.n_chips <= most]
    compact = [s for s in slices if max(s.shape) <= THIN * min(s.shape)]
    return [System(name=f"{chip.name}:{s}", chip=chip, topology=s) for s in compact or slices]


def _weight_bytes(job: Serve) -> float:
    from shardwise.units import bytes_per_element

    return bytes_per_element(job.weights)


def sites(
    config: ModelConfig,
    job: Serve,
    systems: Sequence[System],
    fixed: Fixed,
    *,
    filling: bool,
) -> Sites | None:
    """Every legal engine on every useful placement, or None where there is none.

    Args:
        filling: an engine takes all chips of its machine; else as many as fit lie side by side.
    """
    import numpy as np

    rows: list[tuple[int, Mesh, Placement]] = []
    for i, system in enumerate(systems):
        for mesh in engines(config, system, job, fixed, filling=filling):
            try:
                ways = place(*on(system, mesh), best=True)
            except NoStrategy:
                continue
            rows += [(i, mesh, way) for way in ways]
    if not rows:
        return None
    table = np.array([list(mesh.sizes.values()) for _, mesh, _ in rows], dtype=float)
    distinct: dict[Placement, int] = {}
    index = [distinct.setdefault(way, len(distinct)) for _, _, way in rows]
    return Sites(
        systems=systems,
        system=np.array([i for i, _, _ in rows]),
        meshes=[mesh for _, mesh, _ in rows],
        placements=[way for _, _, way in rows],
        sizes={role: table[:, k] for k, role in enumerate(Mesh().sizes)},
        costs=CollectiveCost(list(distinct)).take(np.array(index)),
    )


def on(system: System, mesh: Mesh) -> tuple[System, dict[str, int]]:
    """What to lay where: engines fill a torus, and lie each by itself in domains of switches."""
    if not isinstance(system.topology, Switched):
        return system, mesh.sizes
    n = mesh.n_chips // mesh.data
    alone = Switched(n_gpus=n, domain=system.topology.domain)
    own = System(
        name=system.name,
        chip=system.chip,
        topology=alone,
        in_network_reduction=system.in_network_reduction,
    )
    return own, {**mesh.sizes, "data": 1}


def side_by_side(system: System, n: int) -> int:
    """Engines of `n` chips that a machine has room for; 0 where one cannot lie on it."""
    topology = system.topology
    if not isinstance(topology, Switched):
        return system.n_chips // n if system.n_chips % n == 0 else 0
    domain = min(topology.domain, topology.n_gpus)
    if n <= domain:
        return topology.n_gpus // domain * (domain // n)
    return topology.n_gpus // n if n % domain == 0 else 0


def engines(
    config: ModelConfig,
    system: System,
    job: Serve,
    fixed: Fixed,
    *,
    filling: bool,
) -> Iterator[Mesh]:
    """Every mesh of an engine, with as many engines as the machine has room for."""
    chips, d_model = system.n_chips, config.d_model
    widths = math.gcd(*tensor_widths(config).values())
    lengths = [1, *(2**k for k in range(1, 17) if worth_cutting(job.prompt_tokens, 2**k))]
    limits = dict(fixed.max_sizes)
    split_d = fixed.get("weights", "2d") != "stationary"
    options = {
        "tensor": [n for n in divisors(widths) if kv_heads_divide(config, n)],
        "expert": divisors(n_experts(config)),
        "pipe": [n for n in range(1, config.n_layers + 1) if filled(config.n_layers, n)],
        "context": lengths,
        "fsdp": [n for n in divisors(d_model) if n <= chips] if split_d else [1],
    }
    for role, every in options.items():
        if role in fixed:
            asked = int(fixed[role])
            options[role] = [asked] if asked in every or role == "context" else []
        options[role] = [n for n in options[role] if n <= limits.get(role, chips)]
    for n, mesh in _products(list(options.items()), chips):
        count = side_by_side(system, n)
        if not count or (filling and n != chips):
            continue
        if fixed.get("data", count) == count and count <= limits.get("data", count):
            yield Mesh(data=count, **mesh)


def _products(
    options: Sequence[tuple[str, Sequence[int]]], chips: int
) -> Iterator[tuple[int, dict[str, int]]]:
    """Every choice of one size for each role whose product is at most `chips`."""
    if not options:
        yield 1, {}
        return
    role, every = options[0]
    for size in every:
        if size > chips:
            break
        for n, rest in _products(options[1:], chips // size):
            yield size * n, {role: size, **rest}


def read_fixed(chosen: Choices | None, max_sizes: Mapping[str, int] | None = None) -> Fixed:
    """What a search is given, after names and values that no engine has are refused.

    Raises:
        UnknownName: a name or a word that is none. BadShape: a size that is no whole number from 1.
    """
    return checked(chosen, max_sizes, WORDS, NUMBERS)


def problems(config: ModelConfig, system: System | None, fixed: Fixed) -> list[str]:
    """Every reason why given sizes of an engine are not legal, each with what would be."""
    n = {**Mesh().sizes, **{r: k for r, k in fixed.items() if isinstance(k, int)}}
    found = []
    widths = tensor_widths(config)
    bad = [f"{k} {v:,} (/{n['tensor']})" for k, v in widths.items() if v % n["tensor"]]
    if bad:
        works = near_divisors(math.gcd(*widths.values()), n["tensor"])
        found.append(
            f"tensor {n['tensor']} does not divide: {', '.join(bad)}. Sizes that do: {works}."
        )
    elif not kv_heads_divide(config, n["tensor"]):
        found.append(
            f"tensor {n['tensor']} and n_kv_heads {config.n_kv_heads}: neither divides the other."
        )
    experts = n_experts(config)
    if experts % n["expert"]:
        works = near_divisors(experts, n["expert"])
        told = f"does not divide {experts} experts. Sizes that do: {works}."
        none = f"{config.name} has no experts to deal out; leave it at 1."
        found.append(f"expert {n['expert']}: {none if experts == 1 else told}")
    if n["pipe"] > config.n_layers or not filled(config.n_layers, n["pipe"]):
        found.append(f"pipe {n['pipe']} does not cut {config.n_layers} layers into even stages.")
    if config.d_model % n["fsdp"]:
        works = near_divisors(config.d_model, n["fsdp"])
        found.append(f"fsdp {n['fsdp']} does not divide d_model {config.d_model:,}: {works}.")
    chips = math.prod(n.values())
    if system and (chips > system.n_chips or not side_by_side(system, chips // n["data"])):
        found.append(
            f"{chips:,} chips of the engines do not divide the {system.n_chips:,} of {system.name}."
        )
    return found
