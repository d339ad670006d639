"""Choice of a compiler among the installed ones, which are detected without importing JAX."""

from __future__ import annotations

from importlib.util import find_spec

from shardwise.check.compiling.targets import NOT_CHECKED, Target, cpu_target, target_of
from shardwise.errors import MissingExtra
from shardwise.hardware import System

# Platform -> packages that contain its compiler; one of them is enough.
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


def installed_compilers() -> frozenset[str]:
    """The platforms among `tpu`, `gpu` and `cpu` whose compiler is installed."""
    platforms = []
    if find_spec("jax"):
        for platform, packages in _PACKAGES.items():
            if any(map(find_spec, packages)):
                platforms.append(platform)
    return frozenset(platforms)


def choose_target(system: System) -> Target:
    """The target for a machine's own compiler if it is installed, else for the CPU's with a note.

    Raises:
        MissingExtra: JAX is not installed, so there is no compiler at all.
    """
    target = target_of(system)
    installed = installed_compilers()
    if "cpu" not in installed:
        raise MissingExtra(
            f"checking {system.name} needs XLA's compiler: {INSTALL[target.platform]}"
        )
    if target.platform in installed:
        return target
    kind = target.platform.upper()
    return cpu_target(
        system,
        f"XLA's compiler for {kind}s is not installed: {INSTALL[target.platform]}. {NOT_CHECKED}",
    )
