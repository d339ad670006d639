"""The kept programs, parsed once."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path

from shardwise.check.hlo.text import Module, parse
from tests.unit.check.hlo.make import PROGRAMS

FOLDER = Path(__file__).parent / "programs"
NAMES = sorted(PROGRAMS)


@functools.cache
def program(name: str) -> Module:
    return parse(gzip.decompress((FOLDER / f"{name}.hlo.gz").read_bytes()).decode())


@functools.cache
def told(name: str) -> dict:
    """The mesh, and what the compiler says of memory."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def mesh(name: str) -> dict[str, int]:
    return told(name)["mesh"]


def wrap(body: str, before: str = "", partitions: int = 4) -> Module:
    """A small program around the instructions of its entry."""
    head = f"HloModule small, is_scheduled=true, num_partitions={partitions}\n"
    return parse(f"{head}\n{before}\nENTRY %main (a: f32[8]) -> f32[8] {{\n{body}\n}}\n")
