"""The account of some steps on an accelerator, which `profile` reads from a trace of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from accelerator_device import Device, Found

from shardwise.profile.account import profile_devices, read_devices
from shardwise.profile.result import Profile
from shardwise.runtime.recording import start_recording, stop_recording

STEPS = 4  # recorded, of which the last one is no step: no other follows it
ROWS = 12  # operations, those that take longest


def account(step: Callable[[], Any], device: Device, name: str) -> Found:
    """Time of a step by category, and its longest operations; or why there is no account.

    Args:
        step: runs one.
        name: of the trace, which is kept beside the results.
    """
    folder = Path(tempfile.mkdtemp())
    try:
        start_recording(str(folder), None)
        for _ in range(STEPS):
            jax.block_until_ready(step())
        stop_recording()
        _keep(folder, Path(device.out).with_name(f"{Path(device.out).stem}-{name}.xplane.pb"))
        chip = device.machine(measured=False).chip if device.in_catalog else None
        profile = profile_devices(str(folder), read_devices(str(folder)), chip=chip)
    except Exception as error:  # the figures of the stage stand without it
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return as_found(profile)


def as_found(profile: Profile) -> Found:
    """Categories and the longest operations of a profile."""
    return {
        "step_s": profile.step_s,
        "module": profile.module,
        "categories": {c.category: c.seconds for c in profile.categories if c.seconds},
        "named_share": profile.named_share,
        "operations": [
            {
                "name": " ".join(filter(None, (one.name, one.phase))),
                "category": one.category,
                "count": one.count,
                "seconds": one.seconds,
                "roof_s": one.roof_s,
            }
            for one in profile.operations[:ROWS]
        ],
    }


def _keep(folder: Path, target: Path) -> None:
    """Copy the trace of this host beside the results."""
    for trace in sorted(folder.rglob("*.xplane.pb")):
        shutil.copyfile(trace, target)
