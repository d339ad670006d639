"""Devices that are not there are told in words, without what drivers write."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.runtime.devices import devices_for
from tests.conftest import ROOT
from tests.unit.train.command import environment

SCRIPT = """
import shardwise as sw
from shardwise.errors import BadInput
from shardwise.runtime.devices import devices_for
try:
    devices_for(sw.hardware("v5e:2x2"), "m")
except BadInput as error:
    print(error)
"""


def test_libtpu_is_quiet_on_a_machine_without_a_tpu() -> None:
    variables = environment(ROOT / "src") | {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    del variables["JAX_PLATFORMS"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the plan is for v5e:2x2: 4 devices of Google TPU v5e.")


def test_devices_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    def fail() -> None:
        raise RuntimeError("Unable to initialize backend 'tpu': it is in use.\nMore.")

    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(BadInput, match=r"of this machine: Unable .* it is in use\.$"):
        devices_for(sw.hardware("v5e:2x2"), "m")
