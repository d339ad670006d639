"""Programs that stay compiled from one process to the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import jax, jax.numpy as jnp
from shardwise.runtime import compile_cache

events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
compile_cache.LEAST_SECONDS = 0.0
x = jnp.ones((4, 4))
with compile_cache.kept_programs():
    print(jax.jit(lambda x: jnp.tanh(x @ x).sum())(x))
    print(events.count("/jax/compilation_cache/cache_hits"))
    print(jax.config.jax_compilation_cache_dir)
compiled = len(events)
jax.jit(lambda x: jnp.cos(x @ x).sum())(x)
print(sum("cache_misses" in name for name in events[compiled:]))
"""


def run(**environment: str) -> list[str]:
    """Run the program; return its result, the number of programs read, and the folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


def test_a_second_process_reads_what_the_first_compiled(tmp_path: Path) -> None:
    result, n_read, folder, n_later = run(SHARDWISE_CACHE=str(tmp_path))
    assert (n_read, folder) == ("0", str(tmp_path / "programs"))
    assert n_later == "0"  # programs after the context are not looked up
    again, n_read, *_ = run(SHARDWISE_CACHE=str(tmp_path))
    assert int(n_read) > 0
    assert again == result


def test_the_users_own_cache_is_left_alone(tmp_path: Path) -> None:
    own = str(tmp_path / "own")
    assert run(SHARDWISE_CACHE=str(tmp_path), JAX_COMPILATION_CACHE_DIR=own)[2] == own


def test_several_devices_of_a_cpu_compile_anew(tmp_path: Path) -> None:
    flags = "--xla_force_host_platform_device_count=2"
    assert run(SHARDWISE_CACHE=str(tmp_path), XLA_FLAGS=flags)[2] == "None"


@pytest.mark.parametrize("kind", ["file", "forbidden"])
def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "cache"
    folder.touch()
    if kind == "forbidden":
        folder = Path("/proc/no-such-folder")
    assert run(SHARDWISE_CACHE=str(folder))[2] == "None"
