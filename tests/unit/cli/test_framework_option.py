"""`--framework` of plan, explain and sweep, and what is refused beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwise.vocabulary import FRAMEWORK_ALIASES, FRAMEWORKS
from tests.golden.terminal import run

JOB = "llama3-8b h100:8 --train --batch 64x2048"


def test_its_case_does_not_matter() -> None:
    plans = [
        json.loads(run(*f"plan {JOB} --framework {name} --json".split()).out)
        for name in ("megatron", "Megatron")
    ]
    assert plans[0] == plans[1]
    assert plans[0]["workload"]["framework"] == "megatron"


def test_explain_takes_it() -> None:
    job = "explain llama3-8b h100:8 --batch 64x2048 --json"
    free, megatron = (
        json.loads(run(*job.split(), *more).out) for more in ([], ["--framework", "megatron"])
    )
    assert free != megatron


def test_a_sweep_takes_several() -> None:
    rows = json.loads(run(*f"sweep {JOB} --framework Megatron,torchtitan --json".split()).out)[
        "rows"
    ]
    assert [row["swept"]["framework"] for row in rows] == ["megatron", "torchtitan"]
    assert rows[0]["step_s"] != rows[1]["step_s"]


@pytest.mark.parametrize("command", ["plan", "explain", "sweep"])
def test_peak_rates_are_of_no_framework(command: str) -> None:
    job = JOB.replace("--train ", "") if command == "explain" else JOB
    result = run(*f"{command} {job} --framework megatron --peak".split())
    assert result.code == 2
    assert "Leave out the framework, or --peak." in result.err.replace("\n  ", " ")


def test_a_saved_plan_with_an_unknown_framework_is_refused_at_its_key(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert run(*f"plan {JOB} --framework megatron -o {file}".split()).code == 0
    file.write_text(file.read_text().replace('"framework": "megatron"', '"framework": "foo"'))
    result = run("explain", str(file))
    assert result.code == 2
    assert '$.workload.framework: unknown framework "foo"' in result.err


def test_a_chip_without_bf16_names_the_dtype_that_works() -> None:
    result = run(*["plan", "gpt2", "t4:8", "--train", "--batch", "64x1024"])
    assert "Choose --dtype fp16." in result.err
    assert run("plan", "gpt2", "t4:8", "--train", "--batch", "64x1024", "--dtype", "fp16").code == 0


def test_other_names_of_a_framework_are_known() -> None:
    plan = json.loads(run(*f"plan {JOB} --framework Megatron-Bridge --json".split()).out)
    assert plan["workload"]["framework"] == "nemo"
    refused = run(*f"plan {JOB} --framework megatron-bridg".split())
    assert refused.code == 2
    assert '"megatron-bridge"' in refused.err
    told = run("plan", "--help").out
    for name in (*FRAMEWORKS, *FRAMEWORK_ALIASES):
        assert name in told.replace("-\n                      ", "-")
