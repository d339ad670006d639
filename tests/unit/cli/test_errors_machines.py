"""Mistakes in the choice of a machine, in collectives and in limits. Rows as in `test_errors`."""

from __future__ import annotations

import shlex

import pytest

from tests.golden.terminal import run

BAD = [
    (
        "plan llama3-8b any --train --tokens 1T --fix tensor=8 --top 3",
        2,
        "any is many machines, of",
    ),
    ("plan llama3-8b any --train", 2, "✗ the price of a run needs its tokens: --tokens 15T.\n"),
    ("plan llama3-8b v5e,h100 --serve --capacity --ttft 1s", 2, "of which --capacity cannot be"),
    ("plan llama3-8b h100,v5p:2x2x1 --train --tokens 1T", 2, "from chips without sizes, as h100"),
    ("plan llama3-8b h100:8 --train --batch 8x512 --within 3d", 2, "--within and --budget choose"),
    (
        "plan llama3-8b v5e,v6e --train --tokens 15T --within 1s --budget 5",
        3,
        "✗ no machine trains",
    ),
    ("collective gossip 1MB --on v5e:4x4", 2, '✗ unknown collective "gossip". Known: '),
    ("collective all_gather 34 --on v5e:4x4", 2, "✗ size 34 has no unit."),
    ("collective all_gather 1MB", 2, "✗ no machine is given. Add --on HARDWARE"),
    ("thresholds Q=2 v5e", 2, '✗ sizes "Q=2": give F, and E and k of experts'),
    (
        "thresholds F=2048,E=2,k=8 v5e",
        2,
        "✗ k=8 experts a token, of E=2: k is at most E. Give more experts, as E=256, or k=2.\n",
    ),
    ("thresholds F=2048,k=3 v5e", 2, "✗ k=3 experts a token, of E=1: k is at most E."),
    ("thresholds F=1e30 v5e", 2, "✗ F=1e+30 is above 1,000,000,000. F of llama3.1-405b is 53,248"),
    ("thresholds F=1,E=1e12 v5e", 2, "✗ E=1e+12 is above 1,000,000,000."),
    ("thresholds llama3-8b v5e --batch 4x4", 2, "✗ --batch needs the chips of a machine"),
    ("hw v6e,bf16=920", 2, '✗ bf16 "920" has no unit.'),
]


@pytest.mark.parametrize(("command", "code", "said"), BAD, ids=[row[0][:60] for row in BAD])
def test_bad_input(command: str, code: int, said: str) -> None:
    done = run(*shlex.split(command))
    flat = done.err.replace("\n  ", " ")
    assert (done.code, done.out) == (code, "")
    assert flat.startswith("✗ ")
    assert said in flat
    assert "Traceback" not in done.err
