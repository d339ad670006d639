"""What is told of somebody's own function."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.check.options import CompileOptions
from shardwise.check.user.function import FunctionReport, check_named_function
from shardwise.errors import BadInput, BadSharding
from tests.unit.check.compilers import needs
from tests.unit.check.programs import train_step, train_step_args

PROGRAMS = "tests.unit.check.programs"


@needs("cpu")
def test_a_function_by_its_name_on_virtual_devices() -> None:
    found = check_named_function(f"{PROGRAMS}:train_step", "", "cpu:4", CompileOptions(cache=False))
    assert (found.compiler, found.verdict, found.passed) == ("cpu", "compiles", True)
    assert found.mesh == {"data": 2, "model": 2}
    assert found.compiled is not None
    # 128 x 256 by 256 x 512, a quarter on each device.
    assert found.compiled.flops == 2 * 128 * 256 * 512 / 4
    assert found.flops_by_scope == {"mlp.up": found.compiled.flops}
    # The sum of the result: over both axes of the mesh, at once or one after the other.
    assert {row.kind for row in found.collectives} == {"all_reduce"}
    assert {axis for row in found.collectives for axis in row.axes} == {"data", "model"}


@needs("tpu")
def test_a_function_from_python_has_memory_and_seconds() -> None:
    found = sw.check(train_step, *train_step_args(), on="v5e:2x2")
    assert isinstance(found, FunctionReport)
    assert (found.compiler, found.fits) == ("tpu", True)
    assert found.compiled is not None
    assert found.compiled.peak_bytes is not None
    assert found.compiled.arguments_bytes == 2 * (256 * 256 + 64 * 256)
    assert found.compiled.step_s is not None
    assert found.compiled.by_category["arguments"] == found.compiled.arguments_bytes
    assert sum(b.n * b.bytes for b in found.largest) <= found.compiled.peak_bytes


def test_a_function_needs_a_machine() -> None:
    with pytest.raises(BadInput, match="on='v5e:4x4'"):
        sw.check(train_step, *train_step_args(), on="")


@needs("cpu")
def test_a_sharding_that_divides_nothing_is_told_with_the_function() -> None:
    with pytest.raises(BadSharding, match="uneven on cpu:4"):
        check_named_function(
            f"{PROGRAMS}:uneven", f"{PROGRAMS}:uneven_args", "cpu:4", CompileOptions(cache=False)
        )


@needs("cpu")
def test_what_cannot_be_traced_is_told_in_its_own_words() -> None:
    with pytest.raises(BadInput, match="cannot be traced with these arguments"):
        check_named_function(
            f"{PROGRAMS}:train_step",
            f"{PROGRAMS}:uneven_args",
            "cpu:4",
            CompileOptions(cache=False),
        )
