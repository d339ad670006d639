"""A run compiles with the plan's options of the compiler, on chips of the plan's kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.plan.schema.common import XlaFlag
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.compiler_options import known, typed
from shardwise.runtime.training.programs import step_of
from shardwise.train.guard import guarded_optimizer
from shardwise.train.recipe import Recipe
from shardwise.train.run import compile_step
from tests.host import host
from tests.unit.train.command import ended, started, tokens

KNOWN, UNKNOWN = "xla_cpu_enable_fast_math", "xla_no_such_option"
MODEL = sw.ModelConfig.dense(n_layers=1, d_model=16, d_ff=32, n_heads=2, n_kv_heads=1, vocab=264)


def test_options_that_the_compiler_does_not_know_are_left_out() -> None:
    assert typed({KNOWN: "true", UNKNOWN: "98304"}) == {KNOWN: True, UNKNOWN: "98304"}
    assert known({KNOWN: "true", UNKNOWN: "98304"}) == {KNOWN: True}
    assert known({KNOWN: "false"}) == {KNOWN: False}


def planned(folder: Path) -> sw.Plan:
    job = sw.Train(batch=2, seq=16, weights="fp32", compute="fp32", gradients="fp32")
    plan = sw.plan(MODEL, host(folder, 1), job)
    flags = [XlaFlag(name=name, value="true", reason="a test") for name in (KNOWN, UNKNOWN)]
    return replace(plan, xla_flags=tuple(flags))


def test_the_step_is_compiled_with_them(tmp_path: Path) -> None:
    import jax

    grid = np.array(jax.devices()[:1], dtype=object).reshape(1, -1)
    recipe = Recipe(steps=10, schedule="constant")
    step = step_of(rebuild(planned(tmp_path)), grid, make_optimizer=guarded_optimizer(recipe))
    with pytest.raises(Exception, match=UNKNOWN):
        compile_step(step, {UNKNOWN: "true"})


def test_a_run_leaves_out_what_its_compiler_does_not_know(tmp_path: Path) -> None:
    planned(tmp_path).save(str(tmp_path / "plan.json"))
    tokens(tmp_path)
    said = ended(started(tmp_path, "plan.json", "--steps", "2")).replace("\n  ", " ")
    assert f"does not know {UNKNOWN} of the plan" in said
    assert KNOWN not in said
