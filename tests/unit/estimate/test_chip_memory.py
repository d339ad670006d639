"""The HBM that plans count with."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.errors import UnknownFigure
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.units import GB, GiB, MiB


@pytest.mark.parametrize(
    ("name", "mib"), [("h100", 81559), ("a100", 81920), ("a100-40g", 40960), ("h200", 143771)]
)
def test_a_gpu_has_what_its_driver_reports(name: str, mib: int) -> None:
    assert capacity_bytes(sw.chip(name)) == mib * MiB


def test_every_nvidia_gpu_states_it() -> None:
    for name in ("rtx-4090", "l40s", "t4", "b200", "gb200", "rtx-3070", "v100"):
        chip = sw.chip(name)
        assert 1 < capacity_bytes(chip) / chip.need("hbm.capacity") < 1.08 or name == "b200"


def test_others_have_what_is_documented() -> None:
    assert capacity_bytes(sw.chip("v5e")) == 16 * GB
    assert capacity_bytes(replace(sw.chip("h100"), hbm_usable_bytes=None)) == 80 * GB
    assert capacity_bytes(sw.hardware("h100:8,hbm=64GiB").chip) == 64 * GiB
    with pytest.raises(UnknownFigure, match=r"hbm\.capacity"):
        capacity_bytes(sw.chip("wse3"))
