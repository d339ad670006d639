"""Compiled programs that stay on disk from one run to the next."""

from __future__ import annotations

import os

from shardwise.cache_folder import cache_folder, shrink

LEAST_SECONDS = 0.1  # of compilation, for a program to be kept
ENTRIES = "*-cache"  # names of the entries of JAX's cache


def keep_programs() -> None:
    """Have JAX keep compiled programs on disk, and read those of earlier runs.

    JAX finds a program by its code, its options, the version of the compiler and the kind of the
    devices. Nothing changes where the user has set up JAX's cache, or the folder cannot be written;
    nor on several devices of a CPU, where collectives of programs from disk have crashed.
    """
    import jax

    is_several_cpus = jax.default_backend() == "cpu" and jax.device_count() > 1
    if getattr(jax.config, "jax_compilation_cache_dir", None) or is_several_cpus:
        return
    folder = cache_folder() / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        return
    shrink(folder, ENTRIES)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
