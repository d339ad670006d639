"""Exposed time of collectives, after overlap with compute: one function for each mesh role.

`docs/planning.md` has the same rules as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, maximum, minimum
from shardwise.estimate.training.gradient_sync import SyncTime
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.formulas import playbook
from shardwise.strategy.schedules import find

COLLECTIVE_MATMUL_PIECES = 4  # as in Transformer Engine's user buffers
# Mesh roles whose collectives overlap with the compute of the same layers, one after the other.
SHARED_ROLES = ("fsdp", "expert", "context")
TINY = 1e-30  # seconds: avoids 0 / 0
# Share of gradient sync that is always exposed: the gradients of the first layers come last, when
# no compute is left to overlap with.
LAST_BUCKET = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Collectives of a step, and the compute that they may overlap with.

    Args:
        priced: one layout, or arrays of layouts.
        traffic: mesh role -> seconds of its collectives in a step, for every role except `data`.
        compute: seconds of compute on the stage in a step.
        attention: seconds of attention, included in `compute`.
    """

    priced: PricedLayout
    traffic: Mapping[str, Num]
    compute: Num
    attention: Num

    def exposed(self) -> dict[str, Num]:
        """Mesh role -> exposed seconds of its collectives in a step."""
        if self.hides_nothing:
            return dict(self.traffic)
        rules = {
            "tensor": self.tensor,
            "context": self.context,
            "host": self.host,
            "fsdp": self.fsdp,
            "expert": self.expert,
        }
        exposed = dict(self.traffic)
        for role, rule in rules.items():
            if role in exposed:
                exposed[role] = rule(exposed[role])
        if "pipe" in exposed and self._is_bidirectional:
            exposed["pipe"] = self._bidirectional(exposed["pipe"])
        self._share_compute(exposed)
        if "pipe" in exposed:
            exposed["pipe"] = self.pipe(exposed["pipe"])
        return exposed

    @property
    def hides_nothing(self) -> bool:
        """Whether collectives take the time of compute: devices of a CPU share its cores."""
        rates = self.priced.rates
        return rates.measured and rates.chip.kind == "cpu"

    def tensor(self, traffic: Num) -> Num:
        """Exposed seconds of `tensor` with collective matmuls, `traffic` without.

        A collective matmul computes one piece during the transfer of the next one, so only the
        first transfer is exposed.
        """
        layout = self.priced.layout
        if "tp_comm" not in layout.overlap:
            return traffic
        first_piece = traffic / minimum(COLLECTIVE_MATMUL_PIECES, layout.sizes["tensor"])
        return maximum(first_piece, traffic - self.compute)

    def context(self, traffic: Num) -> Num:
        """Exposed seconds of `context` with ring attention, `traffic` without.

        A ring receives the next keys and values while it computes attention over the present ones.
        """
        if self.priced.layout.context_kind != "ring":
            return traffic
        return maximum(traffic - self.attention, 0.0)

    def host(self, traffic: Num) -> Num:
        """Exposed seconds of offloaded activations, which move while the layers compute."""
        return maximum(traffic - self.compute, 0.0)

    def fsdp(self, traffic: Num) -> Num:
        """Exposed seconds of `fsdp`: weights are gathered one layer ahead, except the first."""
        first_layer = traffic / self.priced.config.n_layers
        exposed = maximum(first_layer, traffic - self.compute)
        if not self.priced.rates.fusion.backward_prefetch:
            # Gathers of the backward pass are exposed. They are a third of the traffic: weights are
            # gathered twice, and gradients scattered once.
            exposed = maximum(exposed, traffic / 3)
        return exposed

    def expert(self, traffic: Num) -> Num:
        """Exposed seconds of the AllToAlls of experts.

        They overlap with the other direction of a bidirectional pipeline, or with
        `expert_all_to_all` with the compute of the other half of the microbatch.
        """
        if self._is_bidirectional:
            return self._bidirectional(traffic)
        if "expert_all_to_all" in self.priced.layout.overlap:
            return maximum(traffic / 2, traffic - self.compute)
        return traffic

    def pipe(self, traffic: Num) -> Num:
        """Exposed seconds of sends between stages.

        With `pipe_p2p` they overlap with other microbatches, except while the pipeline fills and
        drains.
        """
        layout = self.priced.layout
        if "pipe_p2p" not in layout.overlap:
            return traffic
        passes = self.priced.stage.passes
        bubble = playbook.bubble(layout.sizes["pipe"], layout.n_microbatches, passes)
        return traffic * minimum(1.0, bubble)

    @property
    def _is_bidirectional(self) -> bool:
        """Whether the schedule runs microbatches through the pipeline in both directions."""
        layout = self.priced.layout
        return layout.is_pipelined and find(layout.schedule).pairs

    def _bidirectional(self, traffic: Num) -> Num:
        """Exposed seconds of sends that overlap with compute of the pipeline's other direction."""
        layout = self.priced.layout
        unpaired = minimum(1.0, (layout.sizes["pipe"] + 1) / layout.n_microbatches)
        return maximum(traffic * unpaired, traffic - self.compute)

    def _share_compute(self, exposed: dict[str, Num]) -> None:
        """Limit the overlap of `SHARED_ROLES` to the time of the compute that they share, in place.

        The rest of their overlapped time becomes exposed, in proportion for each role.
        """
        hidden = self._hidden(exposed)
        total = sum(hidden.values(), 0.0)
        excess_share = maximum(total - self.compute, 0.0) / maximum(total, TINY)
        for role, seconds in hidden.items():
            exposed[role] = exposed[role] + excess_share * seconds

    def _hidden(self, exposed: Mapping[str, Num]) -> dict[str, Num]:
        """Mesh role in `SHARED_ROLES` -> seconds of its collectives that overlap with compute."""
        return {
            role: self.traffic[role] - exposed[role] for role in SHARED_ROLES if role in exposed
        }

    def idle_share(self, exposed: Mapping[str, Num]) -> Num:
        """Share of the compute with which no collective of `SHARED_ROLES` overlaps."""
        hidden = sum(self._hidden(exposed).values(), 0.0)
        return maximum(1.0 - hidden / maximum(self.compute, TINY), 0.0)


def data(overlapped: tuple[str, ...], sync: SyncTime, forward: Num, backward: Num) -> Num:
    """Exposed seconds of gradient reductions and of gathers of updated weights in a step.

    Args:
        overlapped: names of the overlaps that the layout uses (its `overlap`).
        sync: time of gradient sync.
        forward: seconds of compute in one microbatch's forward pass with which gathers may overlap.
        backward: seconds of compute in one microbatch's backward pass with which reductions may
            overlap.
    """
    reduce_overlap = backward if "grad_reduce" in overlapped else 0.0
    gather_overlap = forward if "param_gather" in overlapped else 0.0
    exposed = sync.reductions * maximum(sync.reduce_s - reduce_overlap, 0.0)
    exposed = exposed + maximum(sync.gather_s - gather_overlap, 0.0)
    return maximum((sync.reduce_s + sync.gather_s) * LAST_BUCKET, exposed)
