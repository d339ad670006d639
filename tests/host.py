"""A CPU that nobody measured, as a chip: for plans that tests run on this machine."""

from __future__ import annotations

from pathlib import Path

import shardwise as sw
from shardwise.hardware import System

CHIP = """
name = "host"
title = "A CPU of tests"
vendor = "local"
kind = "cpu"
as_of = "2026-11"
[peak]
bf16 = { value = "1e11 FLOP/s", source = "tests", as_of = "2026-11" }
fp32 = { value = "4e10 FLOP/s", source = "tests", as_of = "2026-11" }
[hbm]
capacity = { value = "2 GB", source = "tests", as_of = "2026-11" }
bandwidth = { value = "5e9 B/s", source = "tests", as_of = "2026-11" }
[pcie]
bandwidth = { value = "5e9 B/s", source = "tests", as_of = "2026-11" }
[node]
gpus = { value = 64, source = "tests", as_of = "2026-11" }
egress = { value = "1e9 B/s", source = "tests", as_of = "2026-11" }
"""


def host(folder: Path, n: int) -> System:
    """n of it; `folder` gets its file."""
    path = folder / "host.toml"
    path.write_text(CHIP)
    return sw.hardware(f"{path}:{n}")
