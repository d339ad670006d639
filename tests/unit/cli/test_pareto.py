"""`shardwise plan --pareto memory | chips`."""

from __future__ import annotations

import json

from tests.golden.terminal import run

PLAN = ("plan", "llama3-8b", "v5e:4x4", "--train", "--batch", "16x2048")


def test_against_memory() -> None:
    said = run(*PLAN, "--pareto", "memory")
    assert said.code == 0, said.err
    assert said.out.startswith("Memory per chip from ")
    lines = said.out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    points = json.loads(run(*PLAN, "--pareto", "memory", "--json").out)["points"]
    assert all(point["on_front"] for point in points)
    longer = run(*PLAN, "--pareto", "memory", "-v").out.splitlines()
    assert len(longer) >= len(lines) - 1


def test_against_chips() -> None:
    said = run(*PLAN, "--pareto", "chips")
    assert said.code == 0, said.err
    assert said.out.startswith("Cheapest: v5e:")
    assert "v5e:8x16" in said.out
    assert "none (1)" in said.out
    assert "(1)  does not fit: " in said.out


def test_mistakes() -> None:
    for words, code, problem in (
        (("--pareto", "money"), 2, '✗ unknown front "money". Close: "memory".'),
        (("--pareto", "chips", "--top", "3", "-o", "x.json"), 2, "✗ --pareto lists many plans; -o"),
        (("--pareto", "memory", "--fix", "tensor=3"), 3, "✗ no split of 16 chips divides"),
    ):
        said = run(*PLAN, *words)
        assert (said.code, said.out) == (code, "")
        assert said.err.startswith(problem)
