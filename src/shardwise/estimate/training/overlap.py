"""What of its collectives a step waits for: one function for each role of the mesh.

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

CHUNKS = 4  # pieces of an overlapped product (Transformer Engine's user buffers)
SHARED = ("fsdp", "expert", "context")  # roles that hide beside the layers, one after the other
TINY = 1e-30  # seconds: keeps 0 / 0 apart
LAST_BUCKET = 0.1  # gradients of the first layers come last: nothing is left to hide their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The collectives of a step beside what the chip computes.

    Args:
        priced: the layouts.
        traffic: role -> seconds of all collectives of a step but for `data`.
        compute: seconds that the stage computes.
        attention: of them in attention.
    """

    priced: PricedLayout
    traffic: Mapping[str, Num]
    compute: Num
    attention: Num

    def exposed(self) -> dict[str, Num]:
        """Seconds of each role that nothing hides."""
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
        if "pipe" in exposed and self._runs_in_pairs:
            exposed["pipe"] = self._in_pairs(exposed["pipe"])
        self._share(exposed)
        if "pipe" in exposed:
            exposed["pipe"] = self.pipe(exposed["pipe"])
        return exposed

    def tensor(self, traffic: Num) -> Num:
        """A piece of a product runs beside the transfer of the next; the first has nothing."""
        layout = self.priced.layout
        if "tp_comm" not in layout.overlap:
            return traffic
        first = traffic / minimum(CHUNKS, layout.sizes["tensor"])
        return maximum(first, traffic - self.compute)

    def context(self, traffic: Num) -> Num:
        """In a ring the next keys and values arrive while attention runs over those before."""
        if self.priced.layout.context_kind != "ring":
            return traffic
        return maximum(traffic - self.attention, 0.0)

    def host(self, traffic: Num) -> Num:
        """Activations leave for host memory, and come back, beside the layers."""
        return maximum(traffic - self.compute, 0.0)

    def fsdp(self, traffic: Num) -> Num:
        """Gathers run one layer ahead: the first layer's is waited for."""
        first = traffic / self.priced.config.n_layers
        exposed = maximum(first, traffic - self.compute)
        if not self.priced.rates.kernels.prefetch:  # one of three: weights twice, gradients once
            exposed = maximum(exposed, traffic / 3)
        return exposed

    def expert(self, traffic: Num) -> Num:
        """Tokens travel beside the other direction of the pipeline, or half of the microbatch."""
        layout = self.priced.layout
        if self._runs_in_pairs:
            return self._in_pairs(traffic)
        if "expert_all_to_all" in layout.overlap:
            return maximum(traffic / 2, traffic - self.compute)
        return traffic

    def pipe(self, traffic: Num) -> Num:
        """Between the first and the last microbatch a stage has others to work on."""
        priced, layout = self.priced, self.priced.layout
        if "pipe_p2p" not in layout.overlap:
            return traffic
        filling = playbook.bubble(layout.sizes["pipe"], layout.n_microbatches, priced.stage.passes)
        return traffic * minimum(1.0, filling)

    @property
    def _runs_in_pairs(self) -> bool:
        """Whether the schedule runs both directions of the pipeline side by side."""
        layout = self.priced.layout
        return layout.is_pipelined and find(layout.schedule).pairs

    def _in_pairs(self, traffic: Num) -> Num:
        """What one direction of a pipeline sends runs beside what the other computes."""
        layout = self.priced.layout
        unpaired = minimum(1.0, (layout.sizes["pipe"] + 1) / layout.n_microbatches)
        return maximum(traffic * unpaired, traffic - self.compute)

    def _share(self, exposed: dict[str, Num]) -> None:
        """Collectives that run beside the same computation share its time: what is too much is
        waited for, by each role as much as it hides."""
        hidden = self._hidden(exposed)
        total = sum(hidden.values(), 0.0)
        late = maximum(total - self.compute, 0.0) / maximum(total, TINY)
        for role, seconds in hidden.items():
            exposed[role] = exposed[role] + late * seconds

    def _hidden(self, exposed: Mapping[str, Num]) -> dict[str, Num]:
        """Seconds that hide beside the layers."""
        return {role: self.traffic[role] - exposed[role] for role in SHARED if role in exposed}

    def idle_share(self, exposed: Mapping[str, Num]) -> Num:
        """Share of the computation that hides nothing yet."""
        hidden = sum(self._hidden(exposed).values(), 0.0)
        return maximum(1.0 - hidden / maximum(self.compute, TINY), 0.0)


def data(words: tuple[str, ...], sync: SyncTime, forward: Num, backward: Num) -> Num:
    """Seconds of gradient sums and of gathers of updated weights that nothing hides.

    Args:
        words: what overlaps.
        sync: of a step.
        forward, backward: seconds of one microbatch that hide nothing else: gathers run beside the
            next forward pass, sums beside the backward pass before them.
    """
    beside_sums = backward if "grad_reduce" in words else 0.0
    beside_gathers = forward if "param_gather" in words else 0.0
    late = sync.times * maximum(sync.reduce_s - beside_sums, 0.0)
    late = late + maximum(sync.gather_s - beside_gathers, 0.0)
    return maximum((sync.reduce_s + sync.gather_s) * LAST_BUCKET, late)
