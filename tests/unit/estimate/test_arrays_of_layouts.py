"""One formula for numbers and arrays: many layouts of a form take what each one takes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest

from shardwise.estimate.calibration import PEAK, Calibration, calibration
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.layout_step import LayoutStep, training_program
from shardwise.estimate.training.microbatch import microbatch_time
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.run_variant import IDEAL, FusionProfile
from shardwise.estimate.training.step import StepTime, step_time
from shardwise.hardware import parse_system
from shardwise.models import load
from shardwise.strategy.layout import Form, Layout, Layouts
from shardwise.strategy.mesh import Placement, place
from shardwise.workload import Train
from tests.strategies import every_layout

WIDE = ("tp_comm", "expert_all_to_all")
CASES = [
    # A torus with rings and a line; two slices; switches, one that adds; one domain.
    ("llama3-8b,n_layers=8", "v5p:2x4x4", Train(batch=32, seq=4096), "chip"),
    ("llama3.2-1b,n_layers=8", "v5e:2x4*2", Train(batch=16, seq=2048, overlap=WIDE), "peak"),
    ("mixtral-8x7b,n_layers=8", "h100:16,sharp=on", Train(batch=32, seq=2048, reduce="fp32"),
     "peak"),
    ("qwen1.5-moe-a2.7b,n_layers=8", "h100:16", Train(batch=16, seq=2048, compute="fp8",
     overlap=WIDE), "chip"),
    ("deepseek-v2-lite,n_layers=8", "v5p:2x2x4", Train(batch=16, seq=1024, master="fp32"), "chip"),
    ("gemma2-9b,n_layers=9", "gb200:72", Train(batch=144, seq=4096), "chip"),
    ("llama3-8b,n_layers=8", "a100:16", Train(batch=32, seq=2048,
     offload=("optimizer", "activations")), "chip"),
]  # fmt: skip
QUICK = (1, 2, 4)
PER_FORM = 3  # layouts of a form that are held against the arrays
FORMS = 20  # forms of a case

Words = tuple[object, ...]


def words_of(form: Form) -> Words:
    """What layouts share that are evaluated together."""
    names = (f.name for f in dataclasses.fields(Form) if f.name != "sequence_parallel")
    return tuple(getattr(form, name) for name in names)


@functools.cache
def forms(name: str, machine: str, job: Train) -> list[list[tuple[Layout, Placement]]]:
    """Layouts by their words, each on one of its placements."""
    config, system = load(name), parse_system(machine)
    by_words: dict[Words, list[Layout]] = defaultdict(list)
    for layout in every_layout(config, system, job):
        by_words[words_of(layout)].append(layout)
    found = []
    for k, alike in enumerate(by_words.values()):
        some = alike[:: max(1, len(alike) // PER_FORM)]
        placed = [(layout, place(system, layout.sizes)) for layout in some]
        found.append([(layout, ways[k % len(ways)]) for layout, ways in placed])
    return found[:: max(1, len(found) // FORMS)]


def together(alike: list[tuple[Layout, Placement]]) -> tuple[Layouts, CollectiveCost]:
    """The layouts as arrays, in the manner of the search: one table with all axes."""
    rows = [layout for layout, _ in alike]
    first = rows[0]
    sizes = {role: np.array([r.sizes[role] for r in rows]) for role in first.sizes}
    words = {f.name: getattr(first, f.name) for f in dataclasses.fields(Form)}
    # Over one chip of tensor it splits nothing; a single layout there may not ask for it.
    words["sequence_parallel"] = any(r.sequence_parallel for r in rows)
    split = Layouts(
        **words,
        sizes=sizes,
        micro_batch=np.array([r.micro_batch for r in rows]),
        n_microbatches=np.array([r.n_microbatches for r in rows]),
        virtual=np.array([r.virtual for r in rows]) if first.schedule == "interleaved" else 1,
    )
    distinct = {placement: i for i, placement in enumerate(dict.fromkeys(p for _, p in alike))}
    index = np.array([distinct[placement] for _, placement in alike])
    return split, CollectiveCost(list(distinct)).take(index)


def numbers(time: StepTime) -> dict[str, object]:
    """Every number of a step by name."""
    names = ("compute_s", "head_s", "bubble_s", "update_s", "lower_s", "step_s", "upper_s")
    found = {name: getattr(time, name) for name in names}
    kinds: Mapping[str, Mapping[str, object]] = {"traffic": time.traffic_s, "comm": time.comm_s}
    return found | {f"{k} {r}": t for k, roles in kinds.items() for r, t in roles.items()}


# A torus, switches that add, and latent attention; the other machines and words for `make oracle`.
@pytest.mark.parametrize(
    ("name", "machine", "job", "at"),
    [pytest.param(*case, marks=() if i in QUICK else pytest.mark.oracle)
     for i, case in enumerate(CASES)],
)  # fmt: skip
def test_arrays_of_layouts_take_what_each_takes(
    name: str, machine: str, job: Train, at: str
) -> None:
    config, system = load(name), parse_system(machine)
    cal, kernels = (PEAK, IDEAL) if at == "peak" else (calibration(system.chip), FusionProfile())
    rates = Rates(chip=system.chip, job=job, calibration=cal, fusion=kernels)
    every = forms(name, machine, job)
    for alike in every:
        split, costs = together(alike)
        priced = PricedLayout(config=config, layout=split, rates=rates, costs=costs)
        microbatch = microbatch_time(priced, training_program(config, job, split))
        columns = numbers(step_time(priced, microbatch))
        for i, (layout, placement) in enumerate(alike):
            step = LayoutStep(config, system, job, layout, placement)
            expected = numbers(step.time(cal, kernels))
            # A role that a single layout does not have takes nothing in the arrays.
            for key in columns.keys() | expected.keys():
                column = np.broadcast_to(columns.get(key, 0.0), (len(alike),))
                value = pytest.approx(expected.get(key, 0.0), rel=1e-12, abs=1e-15)
                assert column[i] == value, f"{layout}: {key}"


def test_the_cases_hold_every_kind_of_form() -> None:
    """The test above would pass of forms that are never made."""
    every = [alike[0][0] for case in CASES for alike in forms(*case[:3])]
    assert {f.zero for f in every} == {0, 1, 2, 3}
    kinds = {f.context_kind for f in every}, {f.policy for f in every}, {f.schedule for f in every}
    assert [len(k) for k in kinds] == [3, 5, 7]
    assert {f.expert_tensor for f in every} == {None, 1}
    axes = ("fsdp", "tensor", "context", "expert", "pipe")
    used = {axis for case in CASES for alike in forms(*case[:3]) for layout, _ in alike
            for axis in axes if layout.sizes[axis] > 1}  # fmt: skip
    assert used == set(axes)


@pytest.mark.parametrize("name", ["llama3-8b,n_layers=8", "mixtral-8x7b,n_layers=8"])
def test_a_calibration_changes_arrays_and_numbers_alike(name: str) -> None:
    """Every correction is in both, also those that no chip's file has."""
    config, system, job = load(name), parse_system("h100:16"), Train(batch=32, seq=2048)
    cal = Calibration(
        name="test", matmuls={"bf16": 0.5}, attention=0.4, grouped=0.3, hbm=0.6, network=0.7,
        kernel_s=1e-5, host_s=1e-2, attention_backward=0.8,
    )  # fmt: skip
    rates = Rates(
        chip=system.chip, job=job, calibration=cal, fusion=FusionProfile(flash=False, fused=False)
    )
    for alike in itertools.islice(forms(name, "h100:16", job), 0, None, 5):
        split, costs = together(alike)
        priced = PricedLayout(config=config, layout=split, rates=rates, costs=costs)
        microbatch = microbatch_time(priced, training_program(config, job, split))
        column = step_time(priced, microbatch).step_s
        for i, (layout, placement) in enumerate(alike):
            alone = LayoutStep(config, system, job, layout, placement)
            expected = alone.time(cal, FusionProfile(flash=False, fused=False)).step_s
            assert np.broadcast_to(column, (len(alike),))[i] == pytest.approx(expected, rel=1e-12)
