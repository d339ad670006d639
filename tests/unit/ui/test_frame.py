"""A frame shows the plan that the command line prints: its numbers, parts and strategies."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import shardwise as sw
from shardwise.errors import BadInput, NoPlan, UnknownName
from shardwise.ui.frame import frame, frame_of_plan
from shardwise.ui.question import LocalNames, Question
from tests.unit.ui.questions import EXPERTS, QUESTIONS, SERVING, TRAINING

NOTHING_LOCAL = LocalNames()


def plan_of(question: Question) -> sw.Plan:
    model, machine = sw.model(question.model), sw.hardware(question.hardware)
    assert question.batch is not None
    job = sw.Train(batch=question.batch, seq=question.seq, tokens=question.tokens)
    plan = sw.plan(model, machine, job)
    assert isinstance(plan, sw.Plan)
    return plan


@pytest.mark.parametrize("question", [TRAINING, EXPERTS], ids=str)
def test_the_first_frame_is_the_plan_of_the_search(question: Question) -> None:
    shown, plan = frame(question, NOTHING_LOCAL), plan_of(question)
    assert shown["searched"]
    assert shown["summary"]["total"] == plan.step.expected
    assert shown["question"]["strategy"] == dict(plan.strategy.mesh)
    assert len(shown["strategies"]) == 1 + len(plan.alternatives)
    assert len(shown["why"]) == len(plan.why)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_the_parts_of_a_chart_sum_to_its_total(question: Question) -> None:
    shown = frame(question, NOTHING_LOCAL)
    memory = shown["memory"]
    assert sum(part["bytes"] for part in memory["parts"]) == pytest.approx(memory["total"])
    assert memory["total"] + memory["left"] + memory["margin"] == pytest.approx(memory["capacity"])
    timeline = shown["timeline"]
    busy = [s for row in timeline["rows"] for s in row["spans"] if s["kind"] != "hidden"]
    assert sum(span["seconds"] for span in busy) == pytest.approx(timeline["seconds"], rel=1e-6)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_frame_is_json_and_a_link_to_itself(question: Question) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(frame(question, NOTHING_LOCAL)))
    linked = msgspec.convert(shown["question"], Question)
    again = frame(linked, NOTHING_LOCAL)
    assert again["summary"]["total"] == pytest.approx(shown["summary"]["total"])
    assert again["question"] == shown["question"]
    assert not again["searched"]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_every_number_opens_with_formula_and_code(question: Question) -> None:
    root = Path(sw.__file__).parent.parent
    numbers = frame(question, NOTHING_LOCAL)["numbers"]
    assert len({number["name"] for number in numbers}) == len(numbers)
    for number in numbers:
        assert all((number["formula"], number["filled"]))
        assert number["section"].startswith("§")
        file, line = re.fullmatch(r"(shardwise/[\w/]+\.py):(\d+)", number["source"]).groups()
        text = (root / file).read_text().splitlines()[int(line) - 1]
        assert re.match(r"\s*(def|class|@)", text), number["source"]


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize(
    ("model", "hardware"),
    [
        ("llama3-70b", "h100:8"),  # grouped queries
        ("deepseek-v3", "h200:16"),  # latent attention
        ("deepseek-v2-lite", "h100:2"),
        ("llama3-70b", "v5p:2x2x2"),
    ],
)
def test_sequences_that_fit_follow_from_the_numbers_shown(
    model: str, hardware: str, dtype: str
) -> None:
    question = Question(model=model, hardware=hardware, kind="serve", dtype=dtype)
    number = {n["name"]: n for n in frame(question, NOTHING_LOCAL)["numbers"]}["max_batch"]
    told = re.match(r"([^=]+) = ([\d.,]+), rounded down to a (.*?): ([\d,]+) ", number["filled"])
    expression, quotient, multiple, result = (text.replace(",", "") for text in told.groups())
    assert re.fullmatch(r"[\d. ()/+−]+", expression)
    value = eval(expression.replace("−", "-"))
    unit = int(multiple.removeprefix("multiple of ").replace("whole number", "1"))
    assert f"{value:.2f}" == quotient
    assert int(value) // unit * unit == int(result) == int(number["value"].replace(",", "")) > 0


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_operations_lie_under_the_roof(question: Question) -> None:
    roofline = frame(question, NOTHING_LOCAL)["roofline"]
    assert roofline["points"]
    for point in roofline["points"]:
        if point["flops_per_s"] is not None:
            assert point["flops_per_s"] <= 1.001 * roofline["peak_flops"]


def test_a_saved_plan_is_shown_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan_of(TRAINING).save(path)
    saved = sw.load(path)
    shown, question, local = frame_of_plan(saved)
    assert shown["summary"]["total"] == saved.step.expected
    assert frame(question, local)["summary"]["total"] == pytest.approx(saved.step.expected)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "llama9"}, UnknownName, 'unknown model "llama9"'),
        ({"model": "/etc/passwd"}, UnknownName, "unknown model"),
        ({"model": "../config.json"}, UnknownName, "unknown model"),
        ({"hardware": "host.toml"}, UnknownName, "unknown chip"),
        ({"hardware": "v5e:3x5x7x9"}, BadInput, "v5e"),
        ({"batch": None}, BadInput, "needs a batch"),
        ({"dtype": "fp3"}, BadInput, "fp3"),
        ({"optimizer": "sgdx"}, UnknownName, "optimizer"),
        ({"job": "mine"}, UnknownName, "plan"),
        ({"strategy": {"tensor": 7}}, BadInput, "7"),
        ({"strategy": {"diagonal": 2}}, BadInput, '"diagonal" is no mesh axis'),
        ({"model": "llama3.1-405b"}, NoPlan, "fit"),
    ],
    ids=str,
)
def test_what_cannot_be_answered(changes: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        frame(msgspec.structs.replace(TRAINING, **changes), NOTHING_LOCAL)


def test_an_engine_has_no_data_axis() -> None:
    with pytest.raises(UnknownName, match="data"):
        frame(msgspec.structs.replace(SERVING, strategy={"data": 2}), NOTHING_LOCAL)


def test_an_engine_computes_as_the_command_line_plans_it() -> None:
    question = Question(model="llama3-8b", hardware="v5e:2x2", kind="serve", dtype="int8")
    shown = frame(question, LocalNames())
    job = sw.Serve(prompt=2048, output=512, weights="int8", kv="int8", compute="int8")
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:2x2"), job)
    assert shown["summary"]["total"] == plan.step.expected


@pytest.mark.parametrize(
    ("machine", "names"),
    [("h100:16", ["GPU", "node"]), ("v5p:2x2x1", ["x", "y", "z"])],
)
def test_the_place_of_a_chip_has_short_names(machine: str, names: list[str]) -> None:
    """The page shows `GPU 3, node 0` and `x 1, y 0, z 0`."""
    question = Question(model="llama3.2-1b", hardware=machine, kind="train", batch=64)
    assert frame(question, LocalNames())["mesh"]["letters"] == names


@pytest.mark.parametrize("model", ["llama3-8b", "llama3.2-1b", "deepseek-v2-lite"])
@pytest.mark.parametrize("kind", ["train", "serve"])
def test_chips_hold_the_embedding_once(model: str, kind: str) -> None:
    settings = {"kind": kind, "batch": 64 if kind == "train" else None}
    shown = frame(Question(model=model, hardware="h100:8", **settings), LocalNames())
    weights = [array for array in shown["mesh"]["arrays"] if array["name"] == "embedding"]
    config = sw.model(model)
    assert [[(d["letter"], d["size"]) for d in array["dims"]] for array in weights] == [
        [("V", config.vocab), ("D", config.d_model)]
    ]


def test_a_served_embedding_is_sharded_as_its_memory_is_counted() -> None:
    strategy = {"tensor": 4, "pipe": 1, "expert": 1}
    question = Question(model="llama3-8b", hardware="h100:4", kind="serve", strategy=strategy)
    arrays = {a["name"]: a["dims"] for a in frame(question, LocalNames())["mesh"]["arrays"]}
    assert [dim["axes"] for dim in arrays["embedding"]] == [["tensor"], []]


def test_chips_hold_a_part_of_the_experts() -> None:
    sizes = {"expert": 4, "tensor": 2, "pipe": 1}
    of_an_expert = [["expert"], [], ["tensor"]]
    for expert_tensor, axes in ((2, of_an_expert), (1, [["tensor", "expert"], [], []])):
        question = Question(
            model="mixtral-8x7b",
            hardware="h100:8",
            kind="serve",
            strategy=sizes,
            words={"expert_tensor": expert_tensor},
        )
        held = {a["name"]: a["dims"] for a in frame(question, LocalNames())["mesh"]["arrays"]}
        assert [d["axes"] for d in held["w_gate"]] == axes
    question = Question(model="deepseek-v2-lite", hardware="h100:8", batch=64)
    held_twice = [a["dims"] for a in frame(question, LocalNames())["mesh"]["arrays"]]
    widths = [{d["letter"]: d["size"] for d in dims}.get("F") for dims in held_twice]
    assert {1408, None} <= set(widths)  # an expert's, and that of the layer without experts
