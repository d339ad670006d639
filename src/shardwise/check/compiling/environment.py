"""Which of XLA's compilers are installed, found without importing JAX, and which one is used."""

from __future__ import annotations

from importlib.util import find_spec

from shardwise.check.compiling.targets import NOT_CHECKED, Target, cpu_target, target_of
from shardwise.errors import MissingExtra
from shardwise.hardware import System

# The packages that bring the compiler of a platform; one of them is enough.
_PACKAGES = {
    "tpu": ("libtpu",),
    "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    "cpu": ("jaxlib",),
}

INSTALL = {
    "tpu": "pip install 'shardwise[check]'",
    "gpu": "pip install 'shardwise[check-gpu]'",
    "cpu": "pip install 'shardwise[run]'",
}


def compilers() -> frozenset[str]:
    """The platforms whose compiler is installed: of `tpu`, `gpu` and `cpu`."""
    if not _installed("jax"):
        return frozenset()
    return frozenset(
        platform
        for platform, packages in _PACKAGES.items()
        if any(_installed(package) for package in packages)
    )


def choose(system: System) -> Target:
    """The machine's own compiler where it is installed, else the CPU's, with a note that says so.

    Raises:
        MissingExtra: JAX is not installed, so there is no compiler at all.
    """
    target, installed = target_of(system), compilers()
    if "cpu" not in installed:
        line = INSTALL[target.platform]
        raise MissingExtra(f"{system.name} is checked by XLA's compiler, which is missing: {line}")
    if target.platform in installed:
        return target
    kind = target.platform.upper()
    return cpu_target(
        system,
        f"XLA's compiler for {kind}s is not installed: {INSTALL[target.platform]}. {NOT_CHECKED}",
    )


def _installed(package: str) -> bool:
    return find_spec(package) is not None
