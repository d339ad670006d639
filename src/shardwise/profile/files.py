"""The files of a trace: found in a folder of `jax.profiler`, and opened by its own reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.errors import BadFile, BadInput

if TYPE_CHECKING:
    from jax.profiler import ProfileData

SUFFIX = ".xplane.pb"
# Where the files of a session lie below a folder: as jax.profiler writes them, or moved up.
FOLDERS = ("", "*/", "profile/*/", "plugins/profile/*/", "*/plugins/profile/*/")
N_LISTED = 4  # most files of a folder that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """The trace of one host.

    Args:
        data: its planes, lines and events, by JAX's reader.
        content: the bytes of the file, which hold the compiled programs too.
    """

    path: Path
    data: ProfileData
    content: bytes


def trace_files(path: str) -> tuple[Path, ...]:
    """The files of a trace, one per host: those of the newest session of a folder, or the file.

    Raises:
        BadFile: there is no such file or folder, or no trace in it.
    """
    given = Path(path)
    try:
        if not given.is_dir():
            given.stat()
            return (given,)
    except (OSError, ValueError):
        raise BadFile(f'there is no file or folder "{path}".') from None
    by_session: dict[Path, list[Path]] = {}
    for folder in FOLDERS:
        for file in sorted(given.glob(f"{folder}*{SUFFIX}")):
            by_session.setdefault(file.parent, []).append(file)
    if not by_session:
        names = [entry.name for entry in sorted(given.iterdir())[:N_LISTED]]
        content = f"it holds {', '.join(names)}" if names else "it is empty"
        raise BadFile(
            f'"{path}" has no *{SUFFIX}: {content}. jax.profiler.start_trace(FOLDER) writes one.'
        )
    newest = max(by_session, key=lambda folder: (folder.stat().st_mtime, folder.name))
    return tuple(by_session[newest])


def open_trace(path: Path) -> TraceFile:
    """Read the trace of one host.

    Raises:
        BadFile: the file cannot be read, or is no trace.
        BadInput: this JAX has no reader of traces.
    """
    try:
        from jax.profiler import ProfileData
    except ImportError:
        raise BadInput(
            "this JAX has no jax.profiler.ProfileData, which reads traces: install 0.10 or newer."
        ) from None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(f'cannot read "{path}": {error.strerror}.') from None
    if not content:
        raise BadFile(f'"{path}" is empty: the trace was not written to its end.')
    try:
        data = ProfileData.from_serialized_xspace(content)
    except RuntimeError:
        raise BadFile(
            f'"{path}" is no trace of jax.profiler (*{SUFFIX}), or was cut short.'
        ) from None
    return TraceFile(path=path, data=data, content=content)
