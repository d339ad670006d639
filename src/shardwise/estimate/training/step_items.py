"""All that a step runs on a chip of the fullest stage, as priced items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.chip_rates import is_end
from shardwise.estimate.training.extra_traffic import between_stages, extra_traffic
from shardwise.estimate.training.gradient_sync import sync_items, update
from shardwise.estimate.training.microbatch import (
    compute,
    derived_traffic,
    offload,
    offload_share,
    repeated_parts,
)
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.ops.program import Step


def step_items(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """All that one layout runs in a step on a chip of the fullest stage.

    The seconds of these items are the compute, ends, traffic and update of `step_time`.
    """
    m, repeats = priced.layout.n_microbatches, repeated_parts(priced.layout)
    share = float(priced.stage.share)

    def in_step(items: Iterable[PricedItem]) -> Iterator[PricedItem]:
        for item in items:
            n = m * (1.0 if is_end(item.work) else share)
            if item.phase == "remat" and item.role is None:
                n = n * priced.remat_share
            yield item.times(n)

    def repeated(items: Iterable[PricedItem]) -> Iterator[PricedItem]:
        for item in items:
            if item.part and item.part in repeats:
                yield replace(item, phase="remat").times(share * m * priced.remat_share)

    for item in (*compute(priced, program), *derived_traffic(priced, program)):
        yield from in_step([item])
        yield from repeated([item])
    extra = [*extra_traffic(priced)]
    yield from in_step(extra)
    yield from repeated(extra)
    for item in between_stages(priced):
        yield item.times(m)
    for item in offload(priced, program):
        yield item.times(m * share * offload_share(priced))
    yield from sync_items(priced)
    yield update(priced)
