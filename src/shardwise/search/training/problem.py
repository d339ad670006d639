"""One layout of one job on one machine, with what the search was given: to evaluate or to search.

A case can be changed: another machine, job or layout on the same links.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig
from shardwise.search.given import Fixed
from shardwise.search.training import rank as train
from shardwise.search.training.rank import Candidate, Ranking
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Placement
from shardwise.strategy.span import Span
from shardwise.workload import Train

# Tier of a placement -> the figure with its rate.
TIERS = {"node": "node.egress", "scale-out": "scale_out.egress", "dcn": "dcn.bandwidth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a plan was made from, and the layout that it took.

    Args:
        placement: where the mesh lies.
        cal: the rates behind the expected step.
        fixed: what the search was given.
    """

    model: ModelConfig
    system: System
    job: Train
    layout: Layout
    placement: Placement
    cal: Calibration
    fixed: Fixed

    @property
    def peak(self) -> bool:
        """Whether peak rates are expected."""
        return self.cal == PEAK

    def evaluate(self) -> Candidate:
        """The layout, where it lies."""
        return train.evaluate(
            self.model, self.system, self.job, self.layout, self.cal, self.placement
        )

    def rank(self, keep: int = train.SHOWN) -> Ranking:
        """The search, with the same things given; of 1 the best alone.

        Raises:
            NoStrategy: no split is legal.
        """
        return train.rank(self.model, self.system, self.job, self.cal, self.fixed, keep=keep)

    def on(self, system: System) -> Case:
        """The same layout on a machine of the same shape with other numbers."""
        return replace(self, system=system, placement=relinked(self.placement, system.chip))

    def of(self, candidate: Candidate) -> Case:
        """Another layout of the same work on the same machine."""
        return replace(self, layout=candidate.layout, placement=candidate.placement)


def relinked(placement: Placement, chip: Chip) -> Placement:
    """The same placement with the rates of a chip's links."""
    return replace(placement, spans=tuple((a, _span(s, chip)) for a, s in placement.spans))


def _span(span: Span, chip: Chip) -> Span:
    rate = chip.need("ici.link") if span.rings or span.lent else 0.0
    return replace(
        span,
        rings=tuple(replace(ring, link_bytes_per_s_one_way=rate) for ring in span.rings),
        lent=tuple(replace(ring, link_bytes_per_s_one_way=rate) for ring in span.lent),
        tiers=tuple(replace(t, bytes_per_s=chip.need(TIERS[t.name])) for t in span.tiers),
    )
