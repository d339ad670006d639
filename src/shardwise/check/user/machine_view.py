"""Show the devices of a machine to a user's program, in place of this computer's. Imports JAX.

A program that asks JAX for devices, or for the platform, gets those of the machine that it is
checked for. So it builds its own mesh in its own order, and chooses the kernels of that platform.
The devices of the machine compile but do not run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils


@contextmanager
def show_machine(devices: np.ndarray[Any, Any], platform: str) -> Iterator[None]:
    """Let JAX's public functions report the devices of a machine while the context lasts.

    Functions of JAX that run programs do not use these names, and still run on this computer.

    Args:
        devices: the machine's JAX devices, in any shape.
        platform: `tpu`, `gpu` or `cpu`.
    """
    originals = []
    try:
        for module, name, replacement in _replacements(devices, platform):
            originals.append((module, name, getattr(module, name)))
            setattr(module, name, replacement)
        yield
    finally:
        for module, name, original in reversed(originals):
            setattr(module, name, original)


def _replacements(
    devices: np.ndarray[Any, Any], platform: str
) -> list[tuple[ModuleType, str, Callable[..., Any]]]:
    """Modules, names in them, and the functions that replace these names."""
    machine = sorted(devices.flat, key=lambda device: device.id)
    of_platform = (None, platform, machine[0].platform)

    def for_machine(function: Callable[..., Any], answer: Any) -> Callable[..., Any]:
        """A function that answers for the machine, unless another platform is asked for."""

        @functools.wraps(function)
        def wrapper(*args: Any, **keywords: Any) -> Any:
            bound = inspect.signature(function).bind(*args, **keywords)
            if bound.arguments.get("backend") not in of_platform:
                return function(*args, **keywords)
            return list(answer) if isinstance(answer, list) else answer

        return wrapper

    def on_machine(function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that takes the machine's devices if it is not given any."""

        @functools.wraps(function)
        def wrapper(*args: Any, **keywords: Any) -> Any:
            bound = inspect.signature(function).bind(*args, **keywords)
            if bound.arguments.get("devices") is None:
                bound.arguments["devices"] = list(machine)
            return function(*bound.args, **bound.kwargs)

        return wrapper

    answers = {
        "devices": machine,
        "local_devices": machine,
        "device_count": len(machine),
        "local_device_count": len(machine),
        "default_backend": platform,
    }
    return [
        *((jax, name, for_machine(getattr(jax, name), answers[name])) for name in answers),
        (jax, "make_mesh", on_machine(jax.make_mesh)),
        *(
            (mesh_utils, name, on_machine(getattr(mesh_utils, name)))
            for name in ("create_device_mesh", "create_hybrid_device_mesh")
        ),
    ]
