"""Exposed time of collectives, after overlap with compute: one function for each role of the mesh.

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

CHUNKS = 4  # pieces of a collective matmul (Transformer Engine's user buffers)
SHARED_ROLES = ("fsdp", "expert", "context")  # overlap with the same layers, one after the other
TINY = 1e-30  # seconds: avoids 0 / 0
LAST_BUCKET = 0.1  # gradients of the first layers come last: nothing is left to overlap with


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Collectives of a step, and the compute that they may overlap with.

    Args:
        priced: one layout, or arrays of layouts.
        traffic: role -> seconds of all collectives of a step but for `data`.
        compute: seconds that the stage computes.
        attention: seconds of attention in `compute`.
    """

    priced: PricedLayout
    traffic: Mapping[str, Num]
    compute: Num
    attention: Num

    def exposed(self) -> dict[str, Num]:
        """Exposed seconds of each role."""
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

    def tensor(self, traffic: Num) -> Num:
        """Collective matmul: a piece is computed during the transfer of the next one."""
        layout = self.priced.layout
        if "tp_comm" not in layout.overlap:
            return traffic
        first_piece = traffic / minimum(CHUNKS, layout.sizes["tensor"])
        return maximum(first_piece, traffic - self.compute)

    def context(self, traffic: Num) -> Num:
        """Ring attention: the next keys and values arrive during attention over the last."""
        if self.priced.layout.context_kind != "ring":
            return traffic
        return maximum(traffic - self.attention, 0.0)

    def host(self, traffic: Num) -> Num:
        """Offloaded activations move during the layers."""
        return maximum(traffic - self.compute, 0.0)

    def fsdp(self, traffic: Num) -> Num:
        """Gathers run one layer ahead: the first layer's is exposed."""
        first_layer = traffic / self.priced.config.n_layers
        exposed = maximum(first_layer, traffic - self.compute)
        if not self.priced.rates.fusion.backward_prefetch:
            # The backward gather, one of three collectives: weights twice, gradients once.
            exposed = maximum(exposed, traffic / 3)
        return exposed

    def expert(self, traffic: Num) -> Num:
        """Tokens travel during the other direction of the pipeline, or half of the microbatch."""
        if self._is_bidirectional:
            return self._bidirectional(traffic)
        if "expert_all_to_all" in self.priced.layout.overlap:
            return maximum(traffic / 2, traffic - self.compute)
        return traffic

    def pipe(self, traffic: Num) -> Num:
        """Between the first and the last microbatch a stage has others to compute."""
        layout = self.priced.layout
        if "pipe_p2p" not in layout.overlap:
            return traffic
        passes = self.priced.stage.passes
        bubble = playbook.bubble(layout.sizes["pipe"], layout.n_microbatches, passes)
        return traffic * minimum(1.0, bubble)

    @property
    def _is_bidirectional(self) -> bool:
        """Whether the schedule runs both directions of the pipeline at once."""
        layout = self.priced.layout
        return layout.is_pipelined and find(layout.schedule).pairs

    def _bidirectional(self, traffic: Num) -> Num:
        """Sends of one direction of a pipeline overlap with compute of the other."""
        layout = self.priced.layout
        unpaired = minimum(1.0, (layout.sizes["pipe"] + 1) / layout.n_microbatches)
        return maximum(traffic * unpaired, traffic - self.compute)

    def _share_compute(self, exposed: dict[str, Num]) -> None:
        """Limit roles that overlap with the same compute to its time, in place.

        The excess is exposed, in proportion to what each role overlaps.
        """
        hidden = self._hidden(exposed)
        total = sum(hidden.values(), 0.0)
        excess_share = maximum(total - self.compute, 0.0) / maximum(total, TINY)
        for role, seconds in hidden.items():
            exposed[role] = exposed[role] + excess_share * seconds

    def _hidden(self, exposed: Mapping[str, Num]) -> dict[str, Num]:
        """Seconds of each role that overlap with the layers."""
        return {
            role: self.traffic[role] - exposed[role] for role in SHARED_ROLES if role in exposed
        }

    def idle_share(self, exposed: Mapping[str, Num]) -> Num:
        """Share of the compute that no collective overlaps with yet."""
        hidden = sum(self._hidden(exposed).values(), 0.0)
        return maximum(1.0 - hidden / maximum(self.compute, TINY), 0.0)


def data(overlapped: tuple[str, ...], sync: SyncTime, forward: Num, backward: Num) -> Num:
    """Exposed seconds of gradient reduction and of gathers of updated weights.

    Args:
        overlapped: the layout's `overlap`.
        sync: times of a step.
        forward: free compute of one microbatch's forward pass, which gathers overlap with.
        backward: free compute of one microbatch's backward pass, which reductions overlap with.
    """
    reduce_overlap = backward if "grad_reduce" in overlapped else 0.0
    gather_overlap = forward if "param_gather" in overlapped else 0.0
    exposed = sync.reductions * maximum(sync.reduce_s - reduce_overlap, 0.0)
    exposed = exposed + maximum(sync.gather_s - gather_overlap, 0.0)
    return maximum((sync.reduce_s + sync.gather_s) * LAST_BUCKET, exposed)
