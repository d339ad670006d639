"""A plan holds all that it was made from: evaluated again, it says the same."""

from __future__ import annotations

import dataclasses

import pytest

import shardwise as sw
from shardwise.errors import BadFile
from shardwise.hardware.chip import with_values
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.json_output import encode
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.rank import Candidate

CASES = [
    ("llama3-8b", "v5e:4x4", sw.Train(batch=16, seq=2048), {}),
    ("llama3-8b", "h100:16", sw.Train(batch=64, seq=4096, tokens=1e12, overlap=("tp_comm",)), {}),
    ("mixtral-8x7b", "h100:64", sw.Train(batch=128, seq=2048, reduce="int8"), {"schedule": "1f1b"}),
    ("llama3-8b", "h100:8", sw.Train(batch=16, seq=4096), {"loss_chunks": 4}),
    ("llama3-8b", "h100:8", sw.Train(batch=8, seq=65536), {"fsdp": 8}),  # nothing fits without
    ("deepseek-v3", "h100:512,scale_out=25GB/s", sw.Train(batch=512, seq=4096), {"pipe": 8}),
    ("deepseek-v2-lite", "h100:16", sw.Train(batch=64, seq=4096, mtp_layers=1), {"pipe": 2}),
    ("llama3-8b", "v5e:8x8*2", sw.Train(batch=256, seq=2048, remat="full"), {"schedule": "none"}),
]


def same_numbers(again: Candidate, plan: sw.Plan) -> bool:
    times = (again.roofline.lower_s, again.time.step_s, again.time.upper_s)
    step = plan.step
    return (
        tuple(map(float, times)) == (step.lower, step.expected, step.upper)
        and float(again.memory.total) == plan.memory.total
        and float(again.time.bubble_s / again.time.step_s) == plan.estimate.bubble_fraction
    )


@pytest.mark.parametrize("given", CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def test_saved_and_rebuilt_a_plan_gives_its_numbers(
    given: tuple[str, str, sw.Train, dict[str, int | str]],
) -> None:
    name, machine, job, fixed = given
    model, system = sw.model(name), sw.hardware(machine)
    for plan in sw.search(model, system, job, fixed, n=3):
        case = rebuild(decode(encode(plan)))
        assert (case.model, case.system, case.job) == (model, system, job)
        assert dict(case.fixed) == fixed
        assert not case.peak
        assert same_numbers(case.evaluate(), plan)


def test_the_search_again_finds_the_plan() -> None:
    model, system = sw.model("llama3-8b"), sw.hardware("h100:16")
    plan = sw.plan(model, system, sw.Train(batch=64, seq=4096), {"tensor": 2}, peak=True)
    case = rebuild(plan)
    assert case.peak
    best = case.rank().candidates[0]
    assert best.mesh.sizes == plan.strategy.mesh
    assert same_numbers(best, plan)
    other = dataclasses.replace(case, system=sw.hardware("h100:32"))
    assert other.rank().candidates[0].mesh.n_chips == 32


def test_the_plans_own_figures_count() -> None:
    """A machine that was changed in Python has its catalog's name, and its own numbers."""
    system = sw.hardware("v5e:4x4")
    chip = with_values(system.chip, {"ici.link": 1e10, "hbm.usable": None})
    changed = dataclasses.replace(system, chip=chip)
    plan = sw.plan(sw.model("llama3-8b"), changed, sw.Train(batch=16, seq=2048))
    case = rebuild(decode(encode(plan)))
    assert case.system.chip == chip
    assert same_numbers(case.evaluate(), plan)


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("model", {"architecture": {}}, r"^\$\.model\.architecture: groups is not a list"),
        ("model", {"architecture": {"groups": [{"layer": 3, "count": 1}]}}, "is not an object"),
        ("hardware", {"name": "v5e:5x5x5"}, r"^\$\.hardware: no slice v5e:5x5x5"),
        ("strategy", {"placement": {"fsdp": "somewhere"}}, "has no placement of"),
        ("strategy", {"remat": "norms"}, "remat is norms, but its recomputed parts are those of"),
        ("workload", {"batch": 0}, "not between 1 and"),
    ],
)
def test_a_plan_that_is_none_is_refused(part: str, change: dict[str, object], said: str) -> None:
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:4x4"), sw.Train(batch=16, seq=2048))
    other = dataclasses.replace(getattr(plan, part), **change)
    with pytest.raises(BadFile, match=said):
        rebuild(dataclasses.replace(plan, **{part: other}))
