"""Cache of compiled programs on disk.

The key of an entry is a hash of everything that determines the compiled program, so an entry is
never stale. For a plan's program that is the job, the source of the rooms that build the program,
and the compiler's version; for a user's function it is the lowered program.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from shardwise.cache_folder import MAX_BYTES, shrink
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.result import Compiled, OutOfMemory, decode, encode
from shardwise.errors import BadFile

# Part of every key; incremented whenever `Compiled` or the contents of a key change.
_FORMAT = "3"

# Packages whose versions together identify the compiler.
_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")
# Environment variables that change programs or compilers, by the beginnings of their names.
_ENVIRONMENT = ("JAX_", "XLA_", "LIBTPU_")
# Rooms above those that build programs. `check` is one, but for the part that compiles.
_ROOMS_ABOVE = (
    "check", "train", "serve", "measure", "profile", "compare", "report", "book", "validate", "ui",
    "cli",
)  # fmt: skip


def key_of(parts: Iterable[str]) -> str:
    """A hash of all `parts` and their lengths, so that ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256(_FORMAT.encode())
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def job_key(job: Job) -> str:
    """Key of a self-contained job, which is known without building its program."""
    return key_of(
        (
            msgspec.json.encode(replace(job, cache_path=""), order="sorted").decode(),
            source_digest(),
            sys.version,
            repr(sorted(versions().items())),
            repr(compiler_environment()),
        )
    )


def source_digest() -> str:
    """Hash of the source of the rooms that build and compile programs."""
    package = Path(__file__).parents[2]
    folders = [path for path in package.iterdir() if path.name not in _ROOMS_ABOVE]
    sources = list(package.glob("*.py"))
    for folder in (*folders, Path(__file__).parent):
        sources += folder.rglob("*.py")
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(f"{path.relative_to(package)}:".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of the installed compiler packages."""
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def compiler_environment() -> list[tuple[str, str]]:
    """The environment variables that JAX and the compilers read."""
    return sorted(pair for pair in os.environ.items() if pair[0].startswith(_ENVIRONMENT))


def read(folder: Path, key: str) -> Compiled | OutOfMemory | None:
    """Read an entry; None if it does not exist or cannot be read."""
    path = _entry_path(folder, key)
    try:
        value = decode(path.read_bytes())
        # Entries are deleted in the order of their last use.
        os.utime(path)
    except (OSError, BadFile):
        return None
    if isinstance(value, Compiled):
        return replace(value, cached=True)
    return value if isinstance(value, OutOfMemory) else None


def write(
    folder: Path, key: str, value: Compiled | OutOfMemory, max_bytes: int = MAX_BYTES
) -> None:
    """Write an entry atomically; do nothing if the folder cannot be written."""
    path = _entry_path(folder, key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode(value))
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        shrink(path.parent, "*.json", max_bytes)


def _entry_path(folder: Path, key: str) -> Path:
    return folder / "compiled" / f"{key}.json"
