"""Compiled programs that stay on disk from one run to the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardwise.cache_folder import cache_folder, shrink

LEAST_SECONDS = 0.1  # of compilation, for a program to be kept
ENTRIES = "*-cache"  # names of the entries of JAX's cache


@contextmanager
def kept_programs() -> Iterator[None]:
    """Context in which JAX keeps compiled programs on disk, and reads those of earlier runs.

    JAX finds a program by its code, its options, the version of the compiler and the kind of the
    devices. Nothing changes where the user has set up JAX's cache, or the folder cannot be written;
    nor on several devices of a CPU, where collectives of programs from disk have crashed.
    """
    import jax

    folder = _folder()
    if folder is None:
        yield
        return
    shrink(folder, ENTRIES)
    config: Any = jax.config
    least_seconds = config.jax_persistent_cache_min_compile_time_secs
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    try:
        yield
    finally:
        from jax.experimental.compilation_cache import compilation_cache

        config.update("jax_compilation_cache_dir", None)
        config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
        compilation_cache.reset_cache()  # programs for devices that are not here cannot be read


def _folder() -> Path | None:
    """The folder of programs; None if they are not kept."""
    import jax

    is_several_cpus = jax.default_backend() == "cpu" and jax.device_count() > 1
    if getattr(jax.config, "jax_compilation_cache_dir", None) or is_several_cpus:
        return None
    folder = cache_folder() / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None
