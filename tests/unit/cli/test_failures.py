"""`shardwise plan --mtbf`: one line, and `estimate.goodput` in the document."""

from __future__ import annotations

import json

from tests.golden.terminal import run

PLAN = ("plan", "llama3-8b", "h100:32", "--train", "--batch", "64x2048", "--tokens", "1T")


def test_the_line_and_the_document() -> None:
    said = run(*PLAN, "--mtbf", "500h", "--restart", "2min")
    assert said.code == 0, said.err
    text = " ".join(said.out.split())
    told = json.loads(run(*PLAN, "--mtbf", "500h", "--restart", "2min", "--json").out)
    numbers = told["estimate"]["goodput"]
    assert f"failures goodput {100 * numbers['goodput']:.1f} %, one failure in 15.6 h" in text
    assert "(112 GB from 4 hosts, 2 GB/s each, assumed), a restart 120 s" in text
    assert {"mtbf_s", "interval_s", "goodput", "run_s"} <= set(numbers)
    assert "failures" not in run(*PLAN).out
    assert json.loads(run(*PLAN, "--json").out)["estimate"]["goodput"] is None


def test_energy_is_told_with_all_tables() -> None:
    said = run(*PLAN, "-v")
    assert "energy of the run: " in said.out
    assert "Wh at most, at 700 W a chip" in said.out


def test_mistakes() -> None:
    for words, problem in (
        (("--restart", "5min"), "✗ --restart needs --mtbf"),
        (("--mtbf", "50000"), '✗ --mtbf "50000" has no unit.'),
        (("--mtbf", "0h"), "✗ --mtbf 0h must be a time above 0."),
    ):
        said = run(*PLAN, *words)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith(problem)
