"""The lower bound of an operation's time on one device of a chip, and which roof makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.costs import Cost
from shardwise.check.timeline.durations import DeviceRates
from shardwise.check.timeline.network import Network
from shardwise.errors import UnknownFigure
from shardwise.hardware import Chip
from shardwise.ops.collective import time_s
from shardwise.strategy.span import Ring, Span, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """Seconds of one run, each None if a figure of the chip is not known or nothing needs it.

    Args:
        flops_per_s, hbm_bytes_per_s: peak rates of one device.
        math_s: FLOPs of products at the peak of their dtype.
        hbm_s: HBM bytes at full bandwidth.
        network_s: collectives on their links at full bandwidth.
        links: the links of `network_s` in words.
        seconds: the largest of the three; 0 if all are None.
        bound: the one that it is: `compute`, `HBM`, `network`; "" if all are None.
    """

    chip: str
    flops_per_s: float | None
    hbm_bytes_per_s: float | None
    math_s: float | None
    hbm_s: float | None
    network_s: float | None
    links: str
    seconds: float
    bound: str


def lower_bound(
    chip: Chip, cost: Cost, collectives: Iterable[Collective], network: Network | None
) -> LowerBound:
    """The lower bound of an operation with these costs and collectives.

    Args:
        network: the links between the devices of the program; None if they are not known, so that
            each collective has one axis of the torus, or one node, to itself.
    """
    rates = DeviceRates.of_chip(chip, "roofline", None, chip.n_devices or 1)
    peak = _known(lambda: rates.peak_flops_per_s(cost.dtype)) if cost.flops else None
    bandwidth = _known(lambda: rates.hbm_bytes_per_s) if cost.hbm_bytes else None
    network_s = None
    links: dict[str, None] = {}
    for collective in collectives:
        timed = _on_links(collective, network) if network else _on_chip_links(collective, chip)
        if timed:
            network_s = (network_s or 0.0) + timed[0]
            links[timed[1]] = None
    parts = {
        "compute": cost.flops / peak if peak else None,
        "HBM": cost.hbm_bytes / bandwidth if bandwidth else None,
        "network": network_s,
    }
    known = {name: seconds for name, seconds in parts.items() if seconds is not None}
    bound = max(known, key=lambda name: known[name], default="")
    return LowerBound(
        chip=chip.name,
        flops_per_s=peak,
        hbm_bytes_per_s=bandwidth,
        math_s=parts["compute"],
        hbm_s=parts["HBM"],
        network_s=network_s,
        links=", ".join(links),
        seconds=known.get(bound, 0.0),
        bound=bound,
    )


def _known(figure: Callable[[], float]) -> float | None:
    """A figure of a chip, None if no source gives it."""
    try:
        return figure()
    except UnknownFigure:
        return None


def _on_links(collective: Collective, network: Network) -> tuple[float, str]:
    """Seconds of a collective on the links between its devices, and their names."""
    if collective.between_slices:
        route = network.between_slices(collective.kind, collective.group_size)
    else:
        route = network.route(collective.kind, collective.groups)
    return route.time_s(collective.joined_bytes), " and ".join(route.engines)


def _on_chip_links(collective: Collective, chip: Chip) -> tuple[float, str] | None:
    """Seconds of a collective in a group with links of its own; None if they are not known."""
    kind = "permute" if collective.kind == "send_recv" else collective.kind
    size = 2 if kind == "permute" else collective.group_size
    if chip.ici and chip.ici.link_bytes_per_s_one_way:
        ring = Ring(0, size, 1, True, chip.ici.link_bytes_per_s_one_way)
        words = "one ICI link" if kind == "permute" else "one ICI axis, both directions"
        return float(time_s(kind, collective.joined_bytes, Span(rings=(ring,)))), words
    node = chip.node
    if node and node.bytes_per_s_per_gpu_one_way and size <= node.n_gpus:
        tier = Tier("node", size, node.bytes_per_s_per_gpu_one_way)
        return float(time_s(kind, collective.joined_bytes, Span(tiers=(tier,)))), "one node"
    return None
