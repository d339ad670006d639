"""`--mtp` of plan, explain and sweep, and the verbs that refuse such a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.terminal import run

JOB = "llama3-8b h100:8 --train --batch 64x2048"


def test_plan_and_explain_have_a_line_of_it() -> None:
    for command in (f"plan {JOB}", f"explain {JOB.replace('--train ', '')}"):
        lines = run(*f"{command} --mtp 1".split()).out.splitlines()
        (line,) = [line for line in lines if line.startswith("mtp ")]
        assert "1 layer: +" in line
        assert "GiB on the fullest chip" in line
        assert not [line for line in run(*command.split()).out.splitlines() if "mtp" in line]


def test_a_saved_plan_keeps_it_and_only_the_planner_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert run(*f"plan {JOB} --mtp 2 -o {file}".split()).code == 0
    document = json.loads(file.read_text())
    assert document["workload"]["mtp_layers"] == 2
    assert run("explain", f"{file}").code == 0
    result = run("check", f"{file}")
    assert result.code == 2
    assert "multi-token prediction: the planner supports it" in result.err
    document["workload"]["mtp_layers"] = 99
    file.write_text(json.dumps(document))
    result = run("explain", f"{file}")
    assert result.code == 2
    assert "$.workload.mtp_layers" in result.err


def test_a_sweep_takes_several() -> None:
    rows = json.loads(run(*f"sweep {JOB} --mtp 0,1,2 --json".split()).out)["rows"]
    assert [row["swept"]["mtp_layers"] for row in rows] == [0, 1, 2]
    steps = [row["step_s"]["expected"] for row in rows]
    assert steps == sorted(steps)
    assert len({*steps}) == 3


@pytest.mark.parametrize("text", ["17", "-1", "x", "1.5"])
def test_other_numbers_are_refused(text: str) -> None:
    result = run(*f"plan {JOB} --mtp={text}".split())
    assert result.code == 2
    assert "mtp" in result.err
