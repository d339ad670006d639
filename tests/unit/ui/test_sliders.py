"""Sliders: each stop is legal and answers what the command line answers there."""

from __future__ import annotations

from math import prod

import msgspec
import pytest

from shardwise.errors import ShardwiseError
from shardwise.ui.answer import answer
from shardwise.ui.frame import frame
from shardwise.ui.question import LocalNames, Question, read
from shardwise.ui.sliders import curve, sliders
from tests.unit.ui.questions import EXPERTS, QUESTIONS, SERVING, TRAINING

NOTHING_LOCAL = LocalNames()


def settled(question: Question) -> Question:
    """The question of the first frame, with the strategy that the search chose."""
    return msgspec.convert(frame(question, NOTHING_LOCAL)["question"], Question)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_each_slider_stands_at_one_of_its_stops(question: Question) -> None:
    shown = frame(question, NOTHING_LOCAL)["sliders"]
    assert len({slider["name"] for slider in shown}) == len(shown) > 5
    for slider in shown:
        assert slider["value"] in slider["stops"]
        assert len(slider["changes"]) == len(slider["stops"]) > 1


def test_the_stops_of_mesh_axes_are_legal_and_use_every_chip() -> None:
    question = settled(TRAINING)
    for slider in frame(question, NOTHING_LOCAL)["sliders"]:
        if slider["group"] != "strategy":
            continue
        for change in slider["changes"]:
            assert prod(change.values()) == 8
            moved = msgspec.structs.replace(question, strategy=change, words={})
            answer(read(moved, NOTHING_LOCAL))


@pytest.mark.parametrize(
    ("strategy", "stops"), [({"data": 8}, [0, 1, 2]), ({"fsdp": 8}, None), ({"tensor": 8}, None)]
)
def test_the_stages_of_zero_are_those_of_the_axes(
    strategy: dict[str, int], stops: list[int] | None
) -> None:
    question = msgspec.structs.replace(TRAINING, strategy=strategy)
    shown = {slider["name"]: slider for slider in frame(question, NOTHING_LOCAL)["sliders"]}
    assert (shown["zero"]["stops"] if "zero" in shown else None) == stops
    assert max(shown["batch"]["stops"]) >= 2 * question.batch


@pytest.mark.parametrize(
    "question", [TRAINING, SERVING, pytest.param(EXPERTS, marks=pytest.mark.oracle)], ids=str
)
def test_a_curve_has_a_point_for_each_stop_and_passes_through_the_answer(
    question: Question,
) -> None:
    question = settled(question)
    inputs = read(question, NOTHING_LOCAL)
    plan = answer(inputs)
    for slider in sliders(question, inputs, plan):
        points = curve(question, slider, NOTHING_LOCAL)
        assert [point["stop"] for point in points] == slider.stops
        at_value = points[slider.stops.index(slider.value)]
        if slider.group != "words":  # a kept word may exclude what the search has chosen
            assert at_value["seconds"] > 0
        for point in points:
            assert point.get("problem") or point["value"] > 0


def test_a_curve_of_serving_has_the_numbers_of_its_plans() -> None:
    """Its points are searched without the rest of a plan."""
    question = settled(SERVING)
    inputs = read(question, NOTHING_LOCAL)
    expected: list[object] = []
    points: list[object] = []
    for slider in sliders(question, inputs, answer(inputs)):
        points += [
            [point.get(key) for key in ("problem", "value", "seconds", "batch", "fits")]
            for point in curve(question, slider, NOTHING_LOCAL)
        ]
        for change in slider.changes:
            group = {**(getattr(question, slider.group) or {}), **change} if slider.group else {}
            changes = {slider.group: group} if slider.group else change
            try:
                plan = answer(read(msgspec.structs.replace(question, **changes), NOTHING_LOCAL))
            except ShardwiseError as error:
                expected.append([error.problems[0], None, None, None, None])
                continue
            estimate = plan.estimate
            value, fits = 1 / estimate.tokens_per_s_per_chip, plan.memory.left >= 0
            expected.append([None, value, estimate.tpot_s, estimate.decode.batch, fits])
    assert points == expected
    assert len(points) > 40


@pytest.mark.parametrize("question", [TRAINING, SERVING], ids=str)
def test_more_of_the_machine_never_costs_more(question: Question) -> None:
    question = settled(question)
    inputs = read(question, NOTHING_LOCAL)
    for slider in sliders(question, inputs, answer(inputs)):
        if slider.group == "factors":
            values = [point["value"] for point in curve(question, slider, NOTHING_LOCAL)]
            assert values == sorted(values, reverse=True), slider.name


def test_a_curve_that_nobody_waits_for_ends() -> None:
    question = settled(TRAINING)
    inputs = read(question, NOTHING_LOCAL)
    slider = sliders(question, inputs, answer(inputs))[0]
    wanted = iter([True, True, False])
    assert len(curve(question, slider, NOTHING_LOCAL, lambda: next(wanted))) == 2


def test_an_impossible_stop_is_a_problem_and_no_error() -> None:
    question = settled(TRAINING)
    inputs = read(question, NOTHING_LOCAL)
    batch = next(s for s in sliders(question, inputs, answer(inputs)) if s.name == "batch")
    changed = msgspec.structs.replace(question, batch=7)
    with pytest.raises(ShardwiseError):
        answer(read(changed, NOTHING_LOCAL))
    points = curve(changed, batch, NOTHING_LOCAL)
    assert len(points) == len(batch.stops)


def test_the_batch_of_an_engine_is_what_its_slider_says() -> None:
    engines = Question(model="llama3.2-1b", hardware="h100:4", kind="serve", prompt=512, output=128)
    question = settled(engines)
    inputs = read(question, NOTHING_LOCAL)
    (slider,) = [s for s in sliders(question, inputs, answer(inputs)) if s.name == "batch"]
    assert slider.changes[0]["batch"] == 4 * slider.stops[0]  # engines of one chip
    for stop, change in zip(slider.stops[:3], slider.changes, strict=False):
        moved = frame(msgspec.structs.replace(question, **change), NOTHING_LOCAL)
        assert [s["value"] for s in moved["sliders"] if s["name"] == "batch"] == [stop]


def test_an_axis_that_a_strategy_does_not_name_has_one_chip() -> None:
    """As in an address, which leaves out sizes of 1."""
    question = settled(Question(model="llama3.2-1b", hardware="h100:4", kind="serve", batch=4))
    short = {role: n for role, n in (question.strategy or {}).items() if n > 1 or role == "tensor"}
    linked = frame(msgspec.structs.replace(question, strategy=short), NOTHING_LOCAL)
    assert linked["numbers"] == frame(question, NOTHING_LOCAL)["numbers"]
