"""Whether a compiled program fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.check.compiling.result import COMPILE_ANYWAY, Memory
from shardwise.check.compiling.targets import target_of
from shardwise.hardware import parse_system
from tests.unit.check.compiling.test_cache import MADE

MIB = 2**20


@pytest.mark.parametrize(("peak", "fits"), [(127 * MIB, True), (129 * MIB, False)])
def test_memory_that_the_user_set_is_compared(peak: int, fits: bool) -> None:
    target = target_of(parse_system("v5e:2x2,hbm=128MiB"))
    memory = Memory(arguments=peak, output=0, alias=0, temporaries=0, peak=peak)
    assert replace(MADE, target=target, options=target.options, memory=memory).fits is fits


def test_the_compiler_proves_that_a_program_fits_in_its_chip() -> None:
    large = replace(MADE, memory=replace(MADE.memory, peak=2**60))
    assert large.fits
    assert not replace(large, options={COMPILE_ANYWAY: "true"}).fits
