"""The real server under hostile requests, and after `kill -9`."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.benches import BENCH, imported

pytestmark = pytest.mark.oracle

REQUESTS = 200
CLIENTS = 20


def test_hostile_requests(root: Path) -> None:
    path = os.pathsep.join([str(root / "src"), str(root)])
    done = subprocess.run(
        [sys.executable, str(BENCH / "soak.py"), str(REQUESTS)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert "none lost, none mixed up" in done.stdout


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_server_that_is_killed_starts_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (soak,) = imported(monkeypatch, "soak")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root / "src"), str(root)]))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    model = soak.write_model(tmp_path / "tiny")
    files = contents(tmp_path)
    known = soak.known_prompts(model, seed=1)
    with soak.served(model) as (process, port):
        target = soak.Target(port=port, known=known, special=[])
        assert asyncio.run(answered(soak, target)) == CLIENTS
        assert asyncio.run(killed(soak, target, process)) < CLIENTS
        assert process.wait() == -9
    with soak.served(model, port) as (_, port):
        assert port == target.port
        assert asyncio.run(answered(soak, target)) == CLIENTS
    assert contents(tmp_path) == files


async def answered(soak: ModuleType, target: object) -> int:
    """How many requests at once get the known answers."""
    tally = soak.Tally()
    requests = [tally.run(soak.whole, target, random.Random(seed)) for seed in range(CLIENTS)]
    await asyncio.gather(*requests)
    return int(tally.outcomes["answered"])


async def killed(soak: ModuleType, target: object, process: subprocess.Popen[str]) -> int:
    """As `answered`, with a server that is killed meanwhile."""
    load = asyncio.create_task(answered(soak, target))
    await asyncio.sleep(0.05)
    process.kill()
    return await load
