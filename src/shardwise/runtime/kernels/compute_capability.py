"""Compute capability of the GPUs that JAX compiles for, by its own test.

The test is private, and is of a local GPU. A process that compiles for other GPUs replaces it, so
that JAX's functions for cuDNN admit what those run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ADA, HOPPER, BLACKWELL, CONSUMER_BLACKWELL = "8.9", "9.0", "10.0", "12.0"
_MODULE = "jax._src.cudnn.fused_attention_stablehlo"
_AT_LEAST, _EQUAL = "check_compute_capability", "is_cuda_compute_capability_equal"


def is_at_least(capability: str) -> bool:
    """Whether the GPUs have a compute capability, or a later one."""
    test = private(_AT_LEAST)
    try:
        return bool(test and test(capability))
    except RuntimeError:  # no GPU
        return False


@contextmanager
def compiling_for(capability: str) -> Iterator[None]:
    """Take GPUs of a compute capability for the local ones.

    Args:
        capability: as `9.0`; empty to leave the local ones.
    """
    tests = {
        _AT_LEAST: lambda other: _version(capability) >= _version(other),
        _EQUAL: lambda other: _version(capability) == _version(other),
    }
    local = {name: private(name) for name in tests if capability and private(name)}
    module = importlib.import_module(_MODULE) if local else None
    try:
        for name in local:
            setattr(module, name, tests[name])
        yield
    finally:
        for name, test in local.items():
            setattr(module, name, test)


def private(name: str) -> Any:
    """A function of JAX's module for cuDNN; None if this version has none of this name."""
    try:
        return getattr(importlib.import_module(_MODULE), name, None)
    except ImportError:
        return None


def _version(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))
