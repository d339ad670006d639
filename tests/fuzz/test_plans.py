"""Damaged plans: `explain` answers or refuses each of them in words, and never takes long."""

from __future__ import annotations

import contextlib
import io
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.cli import main
from shardwise.errors import IgnoredKey, ShardwiseError
from shardwise.plan import encode
from shardwise.plan.training import explain as training_explain
from shardwise.report.document import document
from tests.fuzz.plan_edits import Edit, edits

SLOWEST_S = 10.0
MANY = int(os.environ.get("SHARDWISE_FUZZ", "250"))  # edits of each plan in the oracle
LEGAL_EXITS = (0, 2, 3, 4, 5)
MODEL = sw.model("qwen2-0.5b")
PLANS = {
    "training": lambda: sw.plan(MODEL, sw.hardware("h100:2"), sw.Train(batch=2, seq=256)),
    "pipeline": lambda: sw.plan(
        MODEL, sw.hardware("v5e:2x2"), sw.Train(batch=8, seq=256, tokens=1e9), {"pipe": 2}
    ),
    "serving": lambda: sw.plan(
        MODEL, sw.hardware("v5e:2x2"), sw.Serve(prompt=512, output=128, rate=5.0)
    ),
    "prefill": lambda: sw.plan(
        MODEL, sw.hardware("h100:2"), sw.Serve(prompt=512, output=128, batch=2), disaggregate=True
    ),
}


@pytest.fixture(autouse=True)
def searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans with the same inputs share the searches around them, which take a second."""
    sensitivities = training_explain.sensitivities
    known: dict[str, Any] = {}

    def remembered(case: Any, *args: Any, **kwargs: Any) -> Any:
        if repr(case) not in known:
            known[repr(case)] = sensitivities(case, *args, **kwargs)
        return known[repr(case)]

    monkeypatch.setattr(training_explain, "sensitivities", remembered)


def problems_of(edit: Edit, path: Path) -> Iterator[str]:
    """Yield what is wrong with how the command line and Python take a damaged plan."""
    path.write_bytes(edit.text)
    start = time.process_time()
    answer = io.StringIO()
    errors = io.StringIO()
    with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(errors):
        code = main(["explain", str(path)])
    seconds = time.process_time() - start
    told = " ".join(errors.getvalue().split())
    if code not in LEGAL_EXITS or "a bug in shardwise" in told:
        yield f"exit {code}: {told[:200]}"
    elif code and not any(word in told for word in edit.words):
        yield f"names none of {edit.words}: {told[:200]}"
    if any(word in answer.getvalue() for word in (" nan", " inf", "-inf")):
        yield "prints nan or inf"
    if seconds > SLOWEST_S:
        yield f"took {seconds:.0f} s"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IgnoredKey)
            sw.load(path)
    except ShardwiseError as error:
        if code != error.exit_code:
            yield f"sw.load refuses it, the command line exits {code}"
    except Exception as error:
        yield f"sw.load raises {type(error).__name__}"


def failures(kind: str, n: int, seed: int, folder: Path) -> list[str]:
    """The edits of a plan that are not taken as they should be, with what is wrong."""
    text = encode(document(PLANS[kind]())).decode()
    found = []
    for edit in edits(text, n, seed):
        found += [f"{edit.name}: {problem}" for problem in problems_of(edit, folder / "plan.json")]
    return found


@pytest.mark.parametrize("kind", PLANS)
def test_damaged_plans_are_refused_in_words(kind: str, tmp_path: Path) -> None:
    assert failures(kind, 30, seed=1, folder=tmp_path) == []


@pytest.mark.oracle
@pytest.mark.parametrize("kind", PLANS)
def test_many_damaged_plans_are_refused_in_words(kind: str, tmp_path: Path) -> None:
    assert failures(kind, MANY, seed=2, folder=tmp_path) == []
