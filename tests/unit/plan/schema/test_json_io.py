"""plan.json: written, read back equal, and refused when it is broken."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadFile, IgnoredKey
from shardwise.plan import Plan, decode, encode, load, write
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.report.document import document
from tests.conftest import ROOT

CASES = [
    ("llama3-8b", "v5p:4x4x4", sw.Train(batch=64, seq=4096, tokens=1e12)),
    ("mixtral-8x7b", "h100:64", sw.Train(batch=64, seq=4096)),
    ("deepseek-v2-lite", "v5p:4x4x4", sw.Train(batch=64, seq=1024, master="fp32")),
    ("qwen2-0.5b", "h100:1", sw.Train(batch=1, seq=1024)),
    ("llama3-8b", "v5e:4x8*2", sw.Train(batch=64, seq=2048, optimizer="momentum", remat="dots")),
    ("gemma2-9b", "gb200:72", sw.Train(batch=144, seq=4096, remat="full")),
]
PIPED = [
    {"pipe": 4, "schedule": "interleaved", "virtual": 2},
    {"pipe": 2, "schedule": "dualpipe"},  # without a bubble
    {"pipe": 4, "schedule": "zb-v", "zero": 2},
]


def make(name: str, machine: str, job: sw.Train, fixed: dict[str, int | str] | None = None) -> Plan:
    return sw.plan(sw.model(name), sw.hardware(machine), job, fixed)


@pytest.fixture(scope="module")
def small() -> Plan:
    return make("qwen2-0.5b", "v5e:2x2", sw.Train(batch=8, seq=1024))


@pytest.fixture
def raw(small: Plan) -> dict[str, Any]:
    return json.loads(encode(small))


@pytest.mark.parametrize(("name", "machine", "job"), CASES)
def test_a_plan_is_read_back_equal(name: str, machine: str, job: sw.Train, tmp_path: Path) -> None:
    plan = make(name, machine, job)
    path = tmp_path / "plan.json"
    plan.save(str(path))
    assert sw.load(path) == plan
    assert decode(encode(plan)) == plan
    again = tmp_path / "again.json"
    write(load(path), again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("fixed", PIPED, ids=lambda fixed: fixed["schedule"])
def test_a_pipeline_is_read_back_equal(fixed: dict[str, int | str]) -> None:
    plan = make("llama3-8b", "h100:16", sw.Train(batch=64, seq=2048, remat="dots"), fixed)
    assert plan.strategy.schedule == fixed["schedule"]
    assert decode(encode(plan)) == plan


def test_the_keys_of_the_document(raw: dict[str, Any]) -> None:
    assert raw["schema"] == "shardwise.plan/2"
    assert set(raw) == {"schema", "model", "hardware", "workload", "strategy", "estimate",
                        "operations", "why", "alternatives", "practice", "xla_flags"}  # fmt: skip
    assert set(raw["strategy"]) >= {
        "mesh", "placement", "rules", "schedule", "virtual", "micro_batch", "n_microbatches",
        "remat", "recomputed", "precision", "zero", "context_kind", "expert_tensor", "overlap",
        "offload",
    }  # fmt: skip
    assert list(raw["strategy"]["mesh"]) == ["data", "fsdp", "tensor", "context", "expert", "pipe"]
    assert set(raw["estimate"]) >= {
        "step_s", "bound", "compute_s", "hbm_s", "comm_s", "exposed_comm_s", "bubble_fraction",
        "mfu", "tokens_per_s", "tokens_per_s_per_chip", "memory_bytes_per_chip", "run_s",
        "chip_hours", "usd", "joules", "expected_s", "rates", "at_mfu",
    }  # fmt: skip
    assert set(raw["estimate"]["rates"]) == {"name", "as_of", "source", "spread"}
    assert set(raw["estimate"]["step_s"]) == {"lower", "expected", "upper"}
    assert set(raw["estimate"]["memory_bytes_per_chip"]) == {
        "weights", "gradients", "optimizer", "activations", "kv_cache", "other", "total",
        "margin", "capacity",
    }  # fmt: skip
    assert set(raw["operations"][0]) == {
        "name", "phase", "expression", "count", "flops",
        "computed_flops", "hbm_bytes", "collective", "role",
        "network_bytes", "time_s", "math_s", "hbm_s", "hidden",
        "joined_bytes", "axes", "end",
    }  # fmt: skip
    assert set(raw["alternatives"][0]) >= {
        "mesh", "schedule", "zero", "remat", "n_microbatches", "step_s", "memory_bytes_per_chip",
        "fits", "loses_on",
    }  # fmt: skip
    assert set(raw["alternatives"][0]["loses_on"]) == {"kind", "part", "amount", "remat"}
    for reason in raw["why"]:
        assert {"constraint", "margin"} < set(reason)
        assert "text" not in reason


@pytest.mark.parametrize(("name", "machine", "job"), CASES)
def test_words_stand_beside_values_and_are_left_out_on_reading(
    name: str, machine: str, job: sw.Train
) -> None:
    plan = make(name, machine, job)
    worded = document(plan)
    assert decode(encode(worded)) == plan
    for row in (*worded["why"], *worded["alternatives"]):
        assert row.pop("text")
    assert worded == json.loads(encode(plan))


def test_a_plan_of_the_first_schema_is_refused(raw: dict[str, Any]) -> None:
    raw["schema"] = "shardwise.plan/1"
    with pytest.raises(BadFile) as error:
        decode(json.dumps(raw), "old.json")
    assert error.value.problems == (
        'old.json has schema "shardwise.plan/1"; this version reads "shardwise.plan/2".',
        "Plan again: shardwise plan MODEL HARDWARE ... -o plan.json",
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"constraint": "memori"},
            'unknown constraint "memori" at $.why[0]. Close: "memory", "framework"',
        ),
        ({"constraint": 3}, "Expected `str`, got `int` - at `$.why[0].constraint`"),
        ({"total": "much"}, "Expected `float`, got `str` - at `$.total` of `$.why[0]`"),
    ],
)
def test_reasons_that_are_broken(raw: dict[str, Any], change: dict[str, Any], told: str) -> None:
    raw["why"] = [{**raw["why"][-1], **change}]
    with pytest.raises(BadFile) as error:
        decode(json.dumps(raw))
    assert told in str(error.value)


def test_the_document_is_plain_json(small: Plan) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = encode(small).decode()
    json.loads(text, parse_constant=refuse)
    assert text.count("\n") > 100


def test_text_that_is_no_plan(small: Plan) -> None:
    for text in (b"", b"{", b"not json", encode(small)[:-10], b"\xff\xfe"):
        with pytest.raises(BadFile, match=r"^plan is not JSON: "):
            decode(text)
    for text in ("[]", "3", "null", '"plan"'):
        with pytest.raises(BadFile, match="plan is JSON, but not a plan: a plan is an object"):
            decode(text)
    for text in ("{}", '{"schema": 3}', '{"schema": null}'):
        with pytest.raises(BadFile, match='plan is JSON, but not a plan: its key "schema" names'):
            decode(text)
    with pytest.raises(BadFile, match=r'schema "shardwise.plan/3"; this version reads "shardwise'):
        decode('{"schema": "shardwise.plan/3"}')


def test_text_with_a_byte_order_mark_is_read(small: Plan) -> None:
    assert decode(b"\xef\xbb\xbf" + encode(small)) == small


@pytest.mark.parametrize("levels", [100, 50_000])
def test_text_that_is_nested_too_deep(raw: dict[str, Any], levels: int) -> None:
    deep = "[" * levels + "]" * levels
    whole = json.dumps(raw).replace('"groups":', f'"deep": {deep}, "groups":')
    for text in (whole, f'{{"schema": "shardwise.plan/2", "a": {deep}}}'):
        with pytest.raises(BadFile, match="nested more than 32 levels deep"):
            decode(text)


@pytest.mark.parametrize(
    ("path", "key", "told"),
    [
        ((), "modle", 'plan: unknown key $.modle is ignored. Close: "model".'),
        (("strategy",), "meshes", 'unknown key $.strategy.meshes is ignored. Close: "mesh".'),
        (("why", -1), "totl", '.totl is ignored. Close: "total".'),
        (("model", "architecture"), "max_sec", 'max_sec is ignored. Close: "max_seq".'),
        (
            ("estimate", "step_s"),
            "uper",
            'unknown key $.estimate.step_s.uper is ignored. Close: "upper"',
        ),
        (("operations", 1), "flop", '$.operations[1].flop is ignored. Close: "flops".'),
    ],
)
def test_an_unknown_key_is_ignored_with_a_note(
    small: Plan, raw: dict[str, Any], path: tuple[Any, ...], key: str, told: str
) -> None:
    inner: Any = raw
    for step in path:
        inner = inner[step]
    inner[key] = 1
    with pytest.warns(IgnoredKey) as notes:
        plan = decode(json.dumps(raw))
    assert told in str(notes[0].message)
    assert read_the_same(plan, small)


def read_the_same(plan: AnyPlan, other: Plan) -> bool:
    """Whether two plans are equal but for keys of the architecture, which is kept as it is."""
    model = dataclasses.replace(plan.model, architecture=other.model.architecture)
    return dataclasses.replace(plan, model=model) == other


def test_all_unknown_keys_are_told(raw: dict[str, Any]) -> None:
    raw["a"] = raw["strategy"]["b"] = 1
    with pytest.warns(IgnoredKey) as notes:
        decode(json.dumps(raw))
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("workload", "batch"), "8", "Expected `int`, got `str` - at `$.workload.batch`"),
        (("estimate", "step_s", "lower"), None, "at `$.estimate.step_s.lower`"),
        (("strategy", "mesh"), [1], "at `$.strategy.mesh`"),
        (("operations", 0, "count"), 1.5, "at `$.operations[0].count`"),
        (("model", "name"), 7, "Expected `str`, got `int` - at `$.model.name`"),
    ],
)
def test_wrong_types(raw: dict[str, Any], path: tuple[Any, ...], value: Any, told: str) -> None:
    inner: Any = raw
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(BadFile) as error:
        decode(json.dumps(raw))
    assert told in str(error.value)


def test_a_key_that_is_missing(raw: dict[str, Any]) -> None:
    del raw["estimate"]["mfu"]
    with pytest.raises(BadFile, match=r"missing required field `mfu` - at `\$\.estimate`"):
        decode(json.dumps(raw))


def test_a_word_of_the_layout_that_is_missing(raw: dict[str, Any]) -> None:
    del raw["strategy"]["zero"]
    with pytest.raises(BadFile, match=r"missing required field `zero` - at `\$\.strategy`"):
        decode(json.dumps(raw))


def test_full_remat_names_the_whole_layer() -> None:
    job = sw.Train(batch=64, seq=2048, remat="full")
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:4x8"), job)
    raw = json.loads(encode(plan))
    assert (raw["strategy"]["remat"], raw["strategy"]["recomputed"]) == ("full", ["layer"])
    assert decode(json.dumps(raw)) == plan
    assert plan.layout.full_remat
    assert plan.job == job


def test_files_that_cannot_be_read_or_written(small: Plan, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"nothing\.json: No such file or directory\.$"):
        load(tmp_path / "nothing.json")
    with pytest.raises(BadFile, match=r"is a folder, and not a file\.$"):
        load(tmp_path)
    with pytest.raises(BadFile, match=r"is a folder, and not a file\. Nothing was saved\.$"):
        write(small, tmp_path)
    with pytest.raises(BadFile, match=r"No such file or directory\. Nothing was saved\.$"):
        small.save(str(tmp_path / "none" / "plan.json"))
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(BadFile, match=r"text\.json is not JSON"):
        load(tmp_path / "text.json")


def test_the_file_of_a_chip_lies_beside_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan for a machine of one's own is read from any folder, and from a run's folder."""
    chip = (ROOT / "tests/unit/compare/recorded/host.toml").read_text()
    (tmp_path / "own.toml").write_text(chip)
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    plan = make("qwen2-0.5b", "./own.toml:2", sw.Train(batch=2, seq=128))
    for name in ("plan.json", "run/plan.json"):
        write(plan, name)
    write(make("qwen2-0.5b", "./own.toml:2", sw.Serve(context=128)), "serving.json")
    assert load("plan.json") == plan
    monkeypatch.chdir("/")
    for name in ("plan.json", "run/plan.json"):
        moved = load(tmp_path / name)
        assert moved.hardware.name == f"{tmp_path}/own.toml:2"
        assert dataclasses.replace(moved, hardware=plan.hardware) == plan
    serving = load(tmp_path / "serving.json")
    assert serving.strategy.servers.hardware == serving.hardware.name == f"{tmp_path}/own.toml:2"
    (tmp_path / "own.toml").unlink()
    with pytest.raises(BadFile, match="no file"):
        load(tmp_path / "plan.json")
