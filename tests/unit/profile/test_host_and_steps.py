"""What devices wait for on the host, and traces in which no program is the step."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import shardwise as sw
from shardwise.compare.result import PairComparison
from shardwise.errors import BadInput
from shardwise.profile.account import profile_devices, read_devices
from shardwise.profile.host import host_spans
from shardwise.profile.plans import step_program
from shardwise.profile.result import Profile
from shardwise.profile.steps import Steps
from shardwise.report.compare import pair_headline
from shardwise.report.profile import blocks
from shardwise.report.style import render

N_STEPS = 5


def recorded(folder: Path, step: Callable[[int], jax.Array], mark: bool = False) -> Profile:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        for number in range(N_STEPS):
            if mark:
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    step(number).block_until_ready()
            else:
                step(number).block_until_ready()
    return profile_devices(str(folder), read_devices(str(folder)))


def n_recorded(profile: Profile) -> int:
    """With the steps that a busy machine made slow, which the account leaves out."""
    return profile.steps + len(profile.slow_steps)


def screen(profile: Profile) -> str:
    return " ".join(render(blocks(profile, ""), io.StringIO()).split())


def headline(first: Profile, second: Profile) -> str:
    pair = sw.compare(first, second)
    assert isinstance(pair, PairComparison)
    return pair_headline(pair)


def deep(x: jax.Array) -> jax.Array:
    for _ in range(20):
        x = jnp.sin(x @ x.T @ x) + x.sum(0)
    return x


def test_a_step_that_is_compiled_each_time(tmp_path: Path) -> None:
    changing = jax.jit(deep)
    broken = recorded(tmp_path / "a", lambda number: changing(jnp.ones((40 + number, 16))))
    assert n_recorded(broken) == N_STEPS - 1
    assert broken.compiled_steps == broken.steps
    host = {part.name: part.seconds for part in broken.operations if part.category == "host"}
    assert max(host, key=lambda name: host[name]) == "compilation"
    steps = f"{broken.steps} of {broken.steps} steps (new shapes or a new function?)"
    assert f"for compilation: a program is compiled in {steps}" in screen(broken)
    same = jnp.ones((40, 16))
    changing(same)
    clean = recorded(tmp_path / "b", lambda _: changing(same))
    assert clean.compiled_steps == 0


def test_tracing_before_a_compilation_is_part_of_it() -> None:
    def event(name: str, start_ns: float, end_ns: float) -> SimpleNamespace:
        return SimpleNamespace(name=name, start_ns=start_ns, duration_ns=end_ns - start_ns)

    events = [
        event("PjitFunction(step)", 0, 100),
        event("PjitFunction(multiply)", 10, 12),  # traced
        event("backward", 12, 14),
        event("backend_compile_and_load", 40, 90),
        event("PjitFunction(step)", 200, 210),
    ]
    spans = host_spans(SimpleNamespace(lines=[SimpleNamespace(events=events)]))
    compiling = {(s.start_ns, s.end_ns) for s in spans if s.kind == "compilation"}
    assert compiling == {(0, 90), (40, 90)}


def test_callbacks_on_the_host_are_no_work(tmp_path: Path) -> None:
    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            jax.debug.callback(lambda _: time.sleep(0.02), x[0, 0], ordered=True)
            return jnp.tanh(x @ x)

    x = jnp.ones((128, 128))
    step(x).block_until_ready()
    profile = recorded(tmp_path, lambda _: step(x))
    seconds = {part.category: part.seconds for part in profile.categories}
    assert seconds["callback"] > 0.015 > profile.compute_s
    assert "of it for callbacks on the host" in screen(profile)


def eager(x: jax.Array) -> jax.Array:
    for _ in range(3):
        x = jnp.tanh(x @ x) + jnp.sin(x) - x.sum(0) / 3 + jnp.exp(-x) * jnp.cos(x)
        x = jnp.sqrt(jnp.abs(x)) + jnp.log1p(jnp.abs(x)) + jnp.maximum(x, 0)
    return x


def test_many_programs_are_no_step(tmp_path: Path) -> None:
    x = jnp.ones((256, 256))
    eager(x).block_until_ready()
    profile = recorded(tmp_path / "eager", lambda _: eager(x))
    assert (profile.module, profile.steps, profile.has_steps) == ("", 1, False)
    assert profile.n_programs >= 10
    assert sum(part.seconds for part in profile.operations) == pytest.approx(profile.step_s)
    said = screen(profile)
    assert said.startswith(f"no program is the step: {profile.n_programs} programs run, most often")
    assert "Is the step jitted? The whole trace" in said
    with pytest.raises(BadInput, match="has no step to compare"):
        sw.compare(profile, profile)


@pytest.mark.oracle
def test_marked_steps_of_many_programs(tmp_path: Path) -> None:
    x = jnp.ones((256, 256))
    eager(x).block_until_ready()
    profile = recorded(tmp_path / "marked", lambda _: eager(x), mark=True)
    assert (profile.module, profile.has_steps) == ("", True)
    assert n_recorded(profile) == N_STEPS - 1
    assert "Marked step" in screen(profile)
    compiled = jax.jit(eager)
    compiled(x)
    jitted = recorded(tmp_path / "jitted", lambda _: compiled(x), mark=True)
    assert jitted.module == "jit_eager"
    assert headline(profile, jitted)


@pytest.mark.parametrize(
    ("kind", "ran", "program"),
    [
        ("serve", {"jit_prefill", "jit_decode"}, "jit_decode"),
        ("serve", {"jit_prefill"}, ""),  # a server of prompts alone
        ("train", {"jit_run", "jit_decode"}, ""),
    ],
)
def test_the_step_of_an_engine_is_its_decoding(
    kind: str, ran: set[str], program: str, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"workload": {"kind": kind}}))
    assert step_program(str(plan), ran) == program
    assert step_program("", ran) == ""


def test_a_slow_step_is_left_out_of_the_mean() -> None:
    def steps(*ends: float) -> Steps:
        windows = list(pairwise([0.0, *ends]))
        return Steps(
            module="m", n_programs=1, most_frequent="m", are_marked=False, windows=(windows, [])
        ).without_slow()

    assert steps(10, 20, 45, 55).slow == ((20, 45),)
    assert steps(10, 20, 45, 55).windows == ([(0, 10), (10, 20), (45, 55)], [])
    assert steps(10, 20, 34, 44).slow == ()  # 1.4 times the others
    assert steps(10, 35, 60, 70).slow == ()  # half of them
    assert steps(10, 35, 45).slow == ()  # one of three may be usual
    assert steps(10).windows == ([(0, 10)], [])
    assert steps().windows == ([], [])


def test_a_step_that_waited_is_named_and_not_in_the_mean(tmp_path: Path) -> None:
    same = jnp.ones((400, 16))
    run = jax.jit(deep)
    run(same).block_until_ready()

    def step(number: int) -> jax.Array:
        time.sleep(1.0 if number == 2 else 0.2)
        return run(same)

    profile = recorded(tmp_path, step)
    assert profile.steps == N_STEPS - 2
    (slow,) = profile.slow_steps
    assert slow.seconds > 1.0 > profile.step_s
    assert sum(part.seconds for part in profile.operations) == pytest.approx(profile.step_s)
    assert "3 steps of jit_deep on 1 CPU" in screen(profile)
    assert "without a step of 1" in screen(profile)
