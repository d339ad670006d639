"""A planning problem together with its chosen layout.

It can be evaluated or searched again, as it is or with another machine, job or layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig
from shardwise.search.given import Fixed
from shardwise.search.training import rank as train
from shardwise.search.training.rank import Candidate, Ranking
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Placement
from shardwise.strategy.span import Span
from shardwise.workload import Train

# Tier of switches in a placement -> name of the chip's bandwidth over that tier.
TIER_FIGURES = {"node": "node.egress", "scale-out": "scale_out.egress", "dcn": "dcn.bandwidth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The inputs of a plan, and the layout that was chosen.

    Args:
        placement: physical placement of the layout's mesh.
        cal: calibration used for the expected step time.
        fixed: settings that the user fixed for the search.
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
        """Whether the expected step time is computed at peak rates."""
        return self.cal == PEAK

    def evaluate(self) -> Candidate:
        """Evaluate the chosen layout on its placement."""
        return train.evaluate(
            self.model, self.system, self.job, self.layout, self.cal, self.placement
        )

    def step(self) -> LayoutStep:
        """The step of the chosen layout on its placement, not evaluated yet."""
        return LayoutStep(self.model, self.system, self.job, self.layout, self.placement)

    def rank(self, keep: int = train.RANKED) -> Ranking:
        """Search again with the same settings; `keep=1` finds only the best strategy.

        Raises:
            NoStrategy: no split is legal.
        """
        return train.rank(self.model, self.system, self.job, self.cal, self.fixed, keep=keep)

    def with_system(self, system: System) -> Case:
        """A copy on another machine, which differs from the present one only in rates and sizes."""
        return replace(self, system=system, placement=relinked(self.placement, system.chip))

    def with_candidate(self, candidate: Candidate) -> Case:
        """A copy with the layout of another candidate for the same job and machine."""
        return replace(self, layout=candidate.layout, placement=candidate.placement)


def relinked(placement: Placement, chip: Chip) -> Placement:
    """The same placement with the link rates of another chip."""
    spans = tuple((axis, _relinked_span(span, chip)) for axis, span in placement.spans)
    return replace(placement, spans=spans)


def _relinked_span(span: Span, chip: Chip) -> Span:
    """The same links with the rates of another chip."""
    link_rate = 0.0
    if span.rings or span.borrowed:
        link_rate = chip.need("ici.link")
    return replace(
        span,
        rings=tuple(replace(ring, link_bytes_per_s_one_way=link_rate) for ring in span.rings),
        borrowed=tuple(replace(ring, link_bytes_per_s_one_way=link_rate) for ring in span.borrowed),
        tiers=tuple(
            replace(tier, bytes_per_s=chip.need(TIER_FIGURES[tier.name])) for tier in span.tiers
        ),
    )
