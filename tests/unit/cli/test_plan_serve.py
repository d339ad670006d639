"""`plan --serve`: options, screens of 25 lines, exit codes, and every mistake at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.terminal import run

CHAT = ("--serve", "--prompt", "2048", "--output", "256")


@pytest.mark.parametrize(
    "words",
    [
        ("llama3-70b", "v5e:4x4", "--serve", "--batch", "32", "--peak"),
        ("llama3-70b", "h200", *CHAT, "--rate", "20/s", "--ttft", "1s", "--tpot", "30ms"),
        ("deepseek-v3", "gb200:72", *CHAT, "--dtype", "fp8", "--disaggregate"),
        ("llama3-8b", "h100:8", *CHAT, "--draft", "3", "--cached", "50%", "--dtype", "bf16,fp8"),
        ("mixtral-8x7b", "v5e:4x8", *CHAT, "--max", "pipe=1,tensor=8", "--kv-dtype", "int8"),
    ],
)
def test_an_answer_is_a_screen(words: tuple[str, ...]) -> None:
    said = run("plan", *words)
    assert said.code == 0, said.err
    lines = said.out.rstrip("\n").split("\n")
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80


def test_json_has_the_plan() -> None:
    said = run("plan", "llama3-70b", "v5e:4x4", "--serve", "--json")
    told = json.loads(said.out)
    assert told["schema"] == "shardwise.plan/2"
    assert told["workload"]["kind"] == "serve"
    assert told["workload"]["context"] == 8192
    assert told["pareto"]
    estimate = told["estimate"]
    assert {"prefill", "decode", "ttft_s", "tpot_s", "tokens_per_s_per_chip"} <= set(estimate)


def test_top_lists_deployments_and_a_plan_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    said = run("plan", "llama3-8b", "h100:2", *CHAT, "--top", "3", "-o", str(path), "-v")
    assert said.code == 0
    assert f"saved{path}" in "".join(said.out.split())
    assert json.loads(path.read_text())["strategy"]["servers"]["count"] >= 1


def test_every_mistake_is_told() -> None:
    words = "--rate 20/d --prompt 1k --cached 120% --acceptance 1 --ttft 5 --dtype bf17 --top 0"
    said = run("plan", "llama3-70x", "h100:9x", "--serve", "--mesh", "tenor=8", *words.split())
    assert said.code == 2
    for part in (
        "llama3-70x",
        "belong together",
        "20/s",
        "120%",
        "--acceptance needs --draft",
        '--ttft "5"',
        "bf17",
        "tenor",
        "--top",
    ):
        assert part in said.err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("v5e:4x4", "--serve", "--tpot", "5ms"), 3, "the fastest takes"),
        (("v5e:2x2", "--serve"), 3, "Smallest that fit"),
        (("v5e:4x4", "--serve", "--mesh", "tensor=12"), 2, "Sizes that do"),
        (("v5e:4x4", "--serve", "--train"), 2, "different work"),
        (("v5e:4x4", "--serve", "--mtbf", "5h"), 2, "--mtbf"),
        (("h100:8", *CHAT, "--rate", "900/s"), 3, "needs more chips"),
    ],
)
def test_refusals(words: tuple[str, ...], code: int, told: str) -> None:
    said = run("plan", "llama3-70b", *words)
    assert said.code == code
    assert told in said.err.replace("\n  ", " ")


def test_help_of_both_kinds() -> None:
    assert "--tpot" in run("plan", "--serve", "--help").out
    assert "--tpot" not in run("plan", "--help").out


def test_bars_add_up_to_tpot() -> None:
    words = ("plan", "llama3-70b", "h100:8", "--serve", "--prompt", "3000", "--output", "500")
    said = run(*words, "--batch", "64")
    assert said.code == 0, said.err
    shares = [
        float(line.split(" %")[0].split()[-1])
        for line in said.out.splitlines()
        if line.startswith("  ") and line.rstrip().endswith(("%", "decode steps"))
    ]
    # Bars of less than 3 % are left out.
    assert 94 < sum(shares) <= 100.5
    assert "of other requests, between decode steps" in said.out
    said = run("explain", *words[1:], "--batch", "64")
    assert "Prompts of other requests take" in " ".join(said.out.split())
