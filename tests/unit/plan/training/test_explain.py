"""An explanation says what the plan's numbers say."""

from __future__ import annotations

import dataclasses

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput
from shardwise.formulas import thresholds
from shardwise.plan.schema.json_output import encode
from shardwise.plan.training.explain import Explanation, explain, sensitivity

CASES = [
    ("llama3-8b", "v5e:4x4", sw.Train(batch=16, seq=2048)),
    ("mixtral-8x7b", "h100:32", sw.Train(batch=128, seq=2048)),
    ("llama3-8b", "v5e:4x4*2", sw.Train(batch=64, seq=2048)),
    ("qwen2-0.5b", "h100:1", sw.Train(batch=1, seq=1024)),
]
Both = tuple[sw.Plan, Explanation]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def both(request: pytest.FixtureRequest) -> Both:
    name, machine, job = request.param
    plan = sw.plan(sw.model(name), sw.hardware(machine), job)
    return plan, explain(plan, search=False)


def test_what_binds(both: Both) -> None:
    plan, told = both
    assert told.bound == plan.estimate.bound
    assert told.margin is not None
    assert told.margin > (0.99 if told.plan.bound == "communication" else 0.5)
    assert told.plan.step_s == plan.step
    assert sum(told.plan.parts.values()) == pytest.approx(plan.step.expected)
    assert told.why == plan.why


def test_the_runner_up_is_the_next_of_the_search(both: Both) -> None:
    plan, told = both
    if plan.hardware.n_chips == 1:
        assert told.runner_up is told.loses_on is None
        return
    case = sw.model(plan.model.name), sw.hardware(plan.hardware.name)
    job = sw.Train(batch=plan.workload.batch, seq=plan.workload.seq)
    second = sw.search(*case, job, n=2)[1]
    assert told.runner_up is not None
    assert told.runner_up.mesh == second.strategy.mesh
    assert told.runner_up.step_s == second.step
    assert told.runner_up.step_s.expected >= plan.step.expected
    assert told.loses_on


def test_the_table_has_the_numbers_of_the_book(both: Both) -> None:
    plan, told = both
    rows = {row.split: row for row in told.crossovers}
    if plan.hardware.n_chips == 1:
        assert rows == {}
        return
    chip = sw.chip(plan.hardware.chip)
    for row in rows.values():
        assert row.met == (row.own >= row.threshold if row.least else row.own <= row.threshold)
    assert ("expert" in rows) == (plan.model.n_experts > 0)
    assert ("dcn" in rows) == (plan.hardware.slices > 1)
    assert rows["tensor"].own == plan.strategy.mesh["tensor"]
    batch_shards = plan.hardware.n_chips / plan.strategy.mesh["pipe"]  # stages split no tokens
    tokens = plan.workload.tokens_per_step / batch_shards / plan.strategy.n_microbatches
    assert rows["data"].own == tokens
    if plan.hardware.chip == "h100":  # 989.4e12 / 400e9, times E/k
        limit = thresholds.alpha(chip, "scale_out") * 8 / 2
        assert rows["data"].threshold == pytest.approx(limit)
        assert "mixed" not in rows
    else:  # v5e:4x4 has two axes that do not close: two halves of alpha
        assert rows["data"].threshold == pytest.approx(thresholds.alpha(chip))
        assert rows["tensor"].threshold == pytest.approx(14336 / thresholds.alpha(chip))


def test_the_path_goes_from_one_chip_to_memory(both: Both) -> None:
    plan, told = both
    steps = [decision.step for decision in told.path]
    assert (steps[0], steps[-1]) == ("chip", "memory")
    assert ("expert" in steps) == (plan.model.n_experts > 0)
    by_step = {decision.step: decision for decision in told.path}
    assert by_step["chip"].met == (by_step["chip"].number <= by_step["chip"].limit)
    assert by_step["memory"].number == plan.memory.total
    assert by_step["memory"].met
    if plan.hardware.n_chips > 1:
        assert by_step["tensor"].degree == plan.strategy.mesh["tensor"]
        assert by_step["sequences"].limit == plan.hardware.n_chips


def test_an_explanation_is_a_document(both: Both) -> None:
    _, told = both
    assert b'"crossovers"' in encode(told)


def test_what_if_is_the_plan_of_the_other_machine() -> None:
    model, job = sw.model("llama3-8b"), sw.Train(batch=64, seq=4096)
    plan = sw.plan(model, sw.hardware("h100:16"), job, {"schedule": "none"})
    told = explain(plan, {"scale_out": 0.25, "node": 1.0}, search=False).what_if
    assert told is not None
    slower = sw.hardware("h100:16,scale_out=12.5GB/s")
    best = sw.plan(model, slower, job, {"schedule": "none"})
    assert told.best is not None
    assert told.best.step_s == best.step
    assert told.best.mesh == best.strategy.mesh
    assert told.stays == (best.strategy.mesh == plan.strategy.mesh)
    assert told.same.mesh == plan.strategy.mesh
    assert told.same.step_s.expected >= told.best.step_s.expected
    assert told.same.step_s.expected > plan.step.expected


def test_nothing_fits_a_smaller_memory() -> None:
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:4x4"), sw.Train(batch=16, seq=2048))
    told = explain(plan, {"hbm": 0.1}, search=False).what_if
    assert told is not None
    assert told.best is None
    assert not told.stays
    assert not told.same.fits


def test_a_plan_that_is_not_the_best_has_a_faster_runner_up() -> None:
    model, system = sw.model("llama3-8b"), sw.hardware("h100:16")
    plan = sw.evaluate(model, system, sw.Train(batch=64, seq=4096), sw.Mesh(tensor=8, data=2))
    told = explain(plan, search=False)
    assert told.runner_up is not None
    assert told.runner_up.step_s.expected < plan.step.expected


def test_bad_questions_are_refused() -> None:
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:4x4"), sw.Train(batch=16, seq=2048))
    with pytest.raises(BadInput, match="no figure for it"):
        explain(plan, {"node": 2})
    with pytest.raises(BadFile):
        sensitivity(
            dataclasses.replace(plan, model=dataclasses.replace(plan.model, architecture={}))
        )
