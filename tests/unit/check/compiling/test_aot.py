"""What is kept is given back for the same program alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from shardwise.check.compiling import aot
from shardwise.check.compiling.aot import compile_program
from shardwise.check.compiling.result import Compiled, Failure, OutOfMemory
from shardwise.check.compiling.targets import target_of
from shardwise.hardware import parse_system
from shardwise.runtime.program import Program
from tests.unit.check import programs

TARGET = target_of(parse_system("cpu:1"))


def compiled(folder: Path, target: Any = TARGET, **change: Any) -> Compiled:
    program = replace(programs.matmul(np.array(jax.devices("cpu")[:1])), **change)
    made = compile_program(target, lambda: program, cache_path=str(folder))
    assert isinstance(made, Compiled)
    return made


def in_another_scope(in_MK: jax.Array, w_KN: jax.Array) -> jax.Array:
    with jax.named_scope("mlp.down"):
        return jnp.sum(in_MK @ w_KN)


def added(in_MK: jax.Array, w_KN: jax.Array) -> jax.Array:
    return in_MK + w_KN


def of_another_size() -> tuple[Any, ...]:
    program: Program = programs.matmul(np.array(jax.devices("cpu")[:1]), n=128)
    return program.args


def both(folder: Path, change: dict[str, Any], first: Any = None) -> list[bool]:
    """Whether each came from the cache; on one line, since lines of code are part of a program."""
    return [compiled(folder, **which).cached for which in (first or {}, change)]


def test_the_same_program_comes_back(tmp_path: Path) -> None:
    assert both(tmp_path, {}) == [False, True]


# Made when they are asked for: collecting tests must not start JAX.
CHANGES: dict[str, Callable[[], Any]] = {
    "fn": lambda: in_another_scope,
    "args": of_another_size,
    "options": lambda: {"xla_llvm_disable_expensive_passes": "true"},
    "mesh": lambda: Mesh(np.array(jax.devices("cpu")[:1]), ("fsdp",)),
    "name": lambda: "another",
    "target": lambda: replace(TARGET, name="another"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_makes_another_program(tmp_path: Path, change: str) -> None:
    assert both(tmp_path, {change: CHANGES[change]()}) == [False, False]


def test_donation_makes_another_program(tmp_path: Path) -> None:
    assert both(tmp_path, {"fn": added, "donate": (0,)}, {"fn": added}) == [False, False]


def test_the_users_flags_are_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for flags in ("", "--xla_cpu_use_acl=false", ""):
        monkeypatch.setenv("XLA_FLAGS", flags)
        found.append(compiled(tmp_path).cached)
    assert found == [False, False, True]


def test_an_explanation_that_fails_leaves_what_it_was_to_explain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = [
        RuntimeError("RESOURCE_EXHAUSTED: Used 20.0G of 15.75G hbm"),
        RuntimeError("INTERNAL: no such thing"),
    ]

    def fail(*args: Any) -> Compiled:
        raise errors.pop(0)

    monkeypatch.setattr(aot, "compile_lowered", fail)
    program = programs.matmul(np.array(jax.devices("cpu")[:1]))
    first: list[Failure] = []
    failure = compile_program(
        replace(TARGET, platform="tpu"), lambda: program, before_explaining=first.append
    )
    assert isinstance(failure, OutOfMemory)
    assert failure.available == int(15.75 * 2**30)
    assert first == [failure]
    assert not errors
