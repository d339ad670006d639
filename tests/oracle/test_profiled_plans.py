"""Plans that `shardwise profile` runs on this CPU: the account names what the step is spent on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.profile.account import read_profile

pytestmark = pytest.mark.oracle

SIZES = "llama3.2-1b,n_layers=2,d_model=256,n_heads=4,n_kv_heads=2,d_ff=1024,vocab=2048"
CHIP = """
name = "host"
title = "this CPU"
vendor = "local"
kind = "cpu"
market = "desktop"
as_of = "2026-11"
[peak]
fp32 = { value = "100e9 FLOP/s", source = "assumed", as_of = "2026-11" }
bf16 = { value = "100e9 FLOP/s", source = "assumed", as_of = "2026-11" }
[hbm]
capacity = { value = "8e9 B", source = "assumed", as_of = "2026-11" }
bandwidth = { value = "10e9 B/s", source = "assumed", as_of = "2026-11" }
[node]
gpus = { value = 2, source = "assumed", as_of = "2026-11" }
egress = { value = "2e9 B/s", source = "assumed", as_of = "2026-11" }
latency = { value = "20 us", source = "assumed", as_of = "2026-11" }
"""


def shardwise(folder: Path, *args: str) -> str:
    command = [sys.executable, "-m", "shardwise", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("devices", "job", "program"),
    [
        (2, "--train --dtype fp32 --batch 8x128", "jit_run"),
        (1, "--serve --dtype bf16 --prompt 64 --output 32 --batch 4", "jit_decode"),
    ],
)
def test_a_plan_is_run_and_accounted(
    devices: int, job: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "host.toml").write_text(CHIP)
    shardwise(tmp_path, "plan", SIZES, f"./host.toml:{devices}", *job.split(), "-o", "plan.json")
    document = json.loads(shardwise(tmp_path, "profile", "plan.json", "--json"))
    profile = read_profile("plan.profile")
    assert (document["module"], document["devices"]) == (program, devices)
    assert profile.plan == "plan.profile/plan.json"
    assert (profile.module, profile.steps) == (program, document["steps"])
    for parts in (profile.categories, profile.operations):
        assert sum(part.seconds for part in parts) == pytest.approx(profile.step_s)
    idle = profile.idle_s / profile.step_s
    # By the operations of the plan, or by a line of the source; the rest has compilers' names.
    known = sum(part.share for part in profile.operations if part.phase or part.name == "loop")
    assert known + idle >= 0.95
    assert profile.named_share + idle >= 0.9
    assert profile.memory is not None
    assert profile.chip == "host"
    assert any(part.roof for part in profile.operations)
