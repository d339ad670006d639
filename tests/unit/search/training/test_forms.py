"""The words of strategies that are tried."""

from __future__ import annotations

import itertools

import pytest

import shardwise as sw
from shardwise.errors import BadShape, UnknownName
from shardwise.models import load
from shardwise.search.training.forms import Group, policies, read_fixed
from shardwise.strategy import schedules
from shardwise.vocabulary import CONTEXT_KINDS, DEFAULT_OVERLAPS, REMAT_POLICIES
from shardwise.workload import Train

DENSE, MOE, JOB = load("llama3-8b"), load("mixtral-8x7b"), Train(batch=64, seq=2048)


def group(**words: bool) -> Group:
    names = Group.__dataclass_fields__
    return Group(**{**dict.fromkeys(names, False), **words})


@pytest.mark.parametrize("flags", [*itertools.product([False, True], repeat=4)])
def test_every_word_that_makes_sense_is_tried(flags: tuple[bool, ...]) -> None:
    words = dict(
        zip(("weights_sharded", "pipelined", "context_parallel", "replicated"), flags, strict=True)
    )
    forms = list(group(**words).forms(MOE, JOB, {}))
    assert len(set(forms)) == len(forms)
    assert {f.zero for f in forms} == (
        {3} if words["weights_sharded"] else {1, 2} if words["replicated"] else {0}
    )
    assert {f.schedule for f in forms} == (
        {*schedules.searched()} if words["pipelined"] else {"none"}
    )
    assert {f.context_kind for f in forms} == (
        {*CONTEXT_KINDS} if words["context_parallel"] else {"gather"}
    )
    assert {f.policy for f in forms} == {*REMAT_POLICIES}
    assert {f.expert_tensor for f in forms} == {None, 1}
    assert {f.overlap for f in forms} == {DEFAULT_OVERLAPS}


def test_a_dense_model_has_no_experts_to_split() -> None:
    assert {f.expert_tensor for f in group().forms(DENSE, JOB, {})} == {None}


def test_what_the_job_asks_for_is_in_every_form() -> None:
    job = Train(batch=64, seq=2048, remat="mlp", overlap=("tp_comm",), offload=("optimizer",))
    assert policies(job) == ("mlp",)
    for form in group(replicated=True).forms(DENSE, job, {}):
        assert form.policy == "mlp"
        assert form.overlap == (*DEFAULT_OVERLAPS, "tp_comm")
        assert form.offload == ("optimizer",)


def test_chunks_of_the_loss_are_as_many_as_asked_for() -> None:
    assert {f.loss_chunks for f in group().forms(DENSE, JOB, {})} == {1}
    assert {f.loss_chunks for f in group().forms(DENSE, JOB, {"loss_chunks": 8})} == {8}


def test_what_never_wins_is_tried_when_it_is_asked_for() -> None:
    piped = group(pipelined=True, replicated=True)
    assert {f.schedule for f in piped.forms(DENSE, JOB, {"schedule": "gpipe"})} == {"gpipe"}
    assert {f.zero for f in piped.forms(DENSE, JOB, {"zero": 0})} == {0}
    assert list(group(weights_sharded=True).forms(DENSE, JOB, {"zero": 0})) == []
    assert list(group(replicated=True).forms(DENSE, JOB, {"zero": 3})) == []


@pytest.mark.parametrize("schedule", ["gpipe", *schedules.searched()])
def test_without_a_pipeline_there_is_no_schedule(schedule: str) -> None:
    assert list(group().forms(DENSE, JOB, {"schedule": schedule})) == []


@pytest.mark.parametrize(
    ("fixed", "most", "error", "told"),
    [
        ({"tensr": 2}, {}, UnknownName, 'unknown mesh role "tensr". Close: "tensor"'),
        ({"schedule": "1f2b"}, {}, UnknownName, 'unknown schedule "1f2b". Close: "1f1b"'),
        ({"remat": "half"}, {}, UnknownName, 'unknown remat "half"'),
        ({"tensor": 0}, {}, BadShape, "tensor 0 is below 1."),
        ({"tensor": "8"}, {}, BadShape, "tensor '8' is not a whole number."),
        ({"zero": 4}, {}, BadShape, "zero 4 is not a stage of ZeRO: 0, 1, 2 or 3."),
        ({"virtual": 0}, {}, BadShape, "virtual 0 is below 1."),
        ({"loss_chunks": 0}, {}, BadShape, "loss_chunks 0 is below 1."),
        ({}, {"virtual": 2}, UnknownName, 'unknown mesh role "virtual"'),
        ({}, {"pipe": 0}, BadShape, "pipe 0 is below 1."),
    ],
)
def test_names_and_values_that_no_strategy_has(
    fixed: dict[str, int | str], most: dict[str, int], error: type[Exception], told: str
) -> None:
    with pytest.raises(error) as raised:
        read_fixed(fixed, most)
    assert told in str(raised.value)


def test_names_and_values_that_strategies_have() -> None:
    fixed = read_fixed(
        {"tensor": 8, "zero": 0, "virtual": 2, "micro_batch": 1, "schedule": "interleaved",
         "remat": "dots", "context_kind": "ring", "expert_tensor": 1, "loss_chunks": 4},
        {"pipe": 4, "tensor": 1},
    )  # fmt: skip
    assert (fixed["zero"], fixed.sizes, len(fixed)) == (0, {"tensor": 8}, 9)
    assert fixed.max_sizes == (("pipe", 4), ("tensor", 1))


def test_what_is_given_is_a_value() -> None:
    fixed = read_fixed({"tensor": 8, "schedule": "1f1b"}, {"pipe": 4})
    assert hash(fixed) == hash(read_fixed(dict(fixed), dict(fixed.max_sizes)))
    assert fixed != read_fixed(dict(fixed))
    assert str(fixed) == ", tensor 8, schedule 1f1b, pipe at most 4"
    assert fixed.change(tensor=4, zero=1).numbers == {"tensor": 4, "zero": 1}
    assert fixed.change(zero=1).max_sizes == fixed.max_sizes


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "none"])
def test_chunks_of_a_schedule_that_has_its_own_are_refused(schedule: str) -> None:
    with pytest.raises(BadShape, match=f"virtual 3 contradicts schedule {schedule}"):
        read_fixed({"virtual": 3, "schedule": schedule})
    assert read_fixed({"virtual": 3, "schedule": "interleaved"})["virtual"] == 3


def test_given_chunks_leave_other_schedules_out() -> None:
    plan = sw.plan(DENSE, sw.hardware("h100:8"), sw.Train(batch=8, seq=4096), {"virtual": 2})
    assert (plan.strategy.schedule, plan.strategy.layout.virtual) == ("interleaved", 2)
