"""The loop around steps of which some are bad: all that ran is told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardwise.errors import CheckFailed
from shardwise.train.metrics import Hooks, MetricsFile
from shardwise.train.run import _steps_before
from shardwise.train.signals import StopRequest


class Order:
    """Step k reads sequence k - 1."""

    def origins(self, step: int) -> list[tuple[int, int]]:
        return [(0, step)]


def made(folder: Path, bad: set[int], on_bad: str = "stop", every: int = 0) -> Any:
    """A loop of twenty steps that compute nothing, of which some are bad, and its saved steps."""
    from shardwise.train.loop import Loop

    def compiled(state: Any, given: Any) -> Any:
        step, moments = given + 1, state["moments"]
        n = moments.bad + (step in bad)
        told = {"loss": float(step), "norm": 1.0, "usual": 2.0, "good": step - n, "bad": n}
        return {"moments": SimpleNamespace(bad=n)}, told

    estimate = SimpleNamespace(step_s=SimpleNamespace(lower=1.0, upper=2.0, expected=1.5), mfu=0.5)
    parts: dict[str, Any] = {
        "plan": SimpleNamespace(estimate=estimate),
        "train_step": SimpleNamespace(
            shapes=lambda: (None, None), token_order=None, job=SimpleNamespace(tokens_per_step=1)
        ),
        "recipe": SimpleNamespace(
            steps=20, on_bad=on_bad, learning_rate_schedule=lambda: lambda step: 0.1
        ),
    }
    return Loop(
        **parts,
        order=Order(),  # type: ignore[arg-type]
        compiled=compiled,
        state={"moments": SimpleNamespace(bad=0)},
        step=0,
        hooks=Hooks(),
        metrics=MetricsFile(str(folder / "metrics.jsonl"), print),
        checkpoints=None,
        save_every=every,
        stop_request=StopRequest(),
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`(bad steps, more of made) -> problems, steps in the log, its bad steps, steps saved`."""
    from shardwise.train import loop as module

    def ran(bad: set[int], **more: Any) -> Any:
        saved: list[int] = []
        monkeypatch.setattr(module, "load_batch", lambda order, step, *shapes: step)
        monkeypatch.setattr(module.Loop, "save", lambda self: saved.append(self.step))
        loop = made(tmp_path, bad, **more)
        with pytest.raises(CheckFailed) as error:
            loop.run()
        loop.metrics.close()
        log = [json.loads(s) for s in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        events = [(one["step"], one["sequences"]) for one in log if "event" in one]
        steps = [one["step"] for one in log if "event" not in one]
        return error.value.problems, steps, events, saved

    return ran


def test_the_step_behind_a_bad_one_is_told(run: Any) -> None:
    """It was under way when the bad one was read, and is in what is saved."""
    (problem,), steps, events, saved = run({3})
    assert steps == [1, 2, 3, 4]
    assert events == [(3, [[0, 2]])]
    assert saved == [4]
    assert problem.startswith("step 3 is bad: loss 3 ")
    assert "(token set:number): 0:2. --resume continues after it" in problem


def test_two_bad_steps_in_a_row(run: Any) -> None:
    problems, steps, events, saved = run({3, 4})
    assert steps == [1, 2, 3, 4]
    assert events == [(3, [[0, 2]]), (4, [[0, 3]])]
    assert saved == [4]
    assert [problem[:13] for problem in problems] == ["step 3 is bad", "step 4 is bad"]
    assert ["--resume" in problem for problem in problems] == [False, True]


@pytest.mark.parametrize(("bad", "every", "last"), [(4, 4, 4), (5, 4, 6), (20, 0, 20)])
def test_a_bad_step_beside_a_checkpoint_and_at_the_end(
    run: Any, bad: int, every: int, last: int
) -> None:
    (problem,), steps, events, saved = run({bad}, every=every)
    assert steps == list(range(1, last + 1))
    assert [step for step, _ in events] == [bad]
    assert saved[-1] == last
    assert f"step {bad} is bad" in problem


def test_too_many_that_are_skipped(run: Any) -> None:
    problems, steps, events, _ = run(set(range(1, 20)), on_bad="skip")
    assert steps == list(range(1, 12))
    assert [step for step, _ in events] == steps
    assert len(problems) == 2
    assert problems[-1].endswith(
        "10 steps in a row were bad: use a lower --rate or a longer --warmup."
    )


def test_a_trace_is_of_steps_of_a_warm_machine() -> None:
    assert [_steps_before(n) for n in (3, 8, 40, 1000)] == [2, 2, 10, 20]
