"""A compiled step that needs more memory than the device has is refused before it starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardwise.errors import DoesNotFit
from shardwise.hardware import parse_system
from shardwise.train.device_memory import program_bytes, require_memory

MIB = 2**20


def device(limit: int | None) -> Any:
    stats = None if limit is None else {"bytes_limit": limit}
    return SimpleNamespace(memory_stats=lambda: stats)


@pytest.fixture(scope="module")
def compiled() -> Any:
    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    return jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile()


def test_what_is_returned_in_place_counts_once(compiled: Any) -> None:
    assert program_bytes(compiled) == MIB
    require_memory(compiled, device(MIB), 0.5 * MIB)
    require_memory(compiled, device(None), 0.5 * MIB)  # as a CPU, which does not say


def test_the_refusal_names_all_sizes_and_hardware_that_can_be_planned_for(compiled: Any) -> None:
    with pytest.raises(DoesNotFit) as refused:
        require_memory(compiled, device(MIB - 1), 64e9)
    (problem,) = refused.value.problems
    assert "needs 1.05 MB on a device" in problem
    option = problem.split("...:N,")[1].rstrip(".")
    assert parse_system(f"h100:1,{option}").chip.hbm_bytes == pytest.approx(64e9, rel=0.01)
