"""The folder of a run, beside its checkpoints: how the run was started, its plan, and a lock.

`run.json` has the recipe, the command and the versions, `plan.json` the plan. `--resume` takes up
what the command leaves out. The lock keeps a second run from writing to the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TextIO

from shardwise.errors import BadFile, BadInput, file_error
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.training import Plan
from shardwise.runtime.processes.consensus import all_agree
from shardwise.train.recipe import Recipe

SCHEMA = "shardwise.run/1"
RECORD_FILE = "run.json"
PLAN_FILE = "plan.json"
LOCK_FILE = "run.lock"
PACKAGES = ("shardwise", "jax", "jaxlib", "optax", "orbax-checkpoint", "grain")
# Parts of a plan that decide what a run computes; the others follow from them.
PLAN_PARTS = ("model", "hardware", "workload", "strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """How a run was started; its fields are keys of `run.json`.

    Args:
        recipe: the hyperparameters.
        data: folders of tokens with their weights.
        seed: seed of the initial weights and of the order of sequences.
        start: folder of the published model with the initial weights; empty for random weights.
        every: steps between checkpoints; 0 to save at the end only.
        keep: number of checkpoints in the folder.
        command: the command line of the process.
        versions: package -> its version.
        export: folder for the final weights; empty for none.
    """

    recipe: Recipe
    data: str
    seed: int
    start: str
    every: int
    keep: int
    command: str
    versions: Mapping[str, str]
    export: str = ""


def this_command() -> tuple[str, dict[str, str]]:
    """Return the command line of this process, and the versions of what it runs."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    program = Path(sys.argv[0])
    name = program.name
    if name == "__main__.py":  # of python -m
        name = program.parent.name
    return shlex.join([name, *sys.argv[1:]]), versions


def read_record(folder: str) -> RunRecord | None:
    """Read the record in the folder of a run; return None if there is none.

    Raises:
        BadFile: the file cannot be read, or is not a record.
    """
    path = Path(folder) / RECORD_FILE
    if not path.is_file():
        return None
    try:
        keys = json.loads(path.read_text("utf-8"))
        if keys.pop("schema") != SCHEMA:
            raise BadFile(f'{path} has another schema than "{SCHEMA}", which this version reads.')
        keys["recipe"] = Recipe(**keys["recipe"])
        return RunRecord(**keys)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{path} is not the record of a run: {error!r}.") from None


def write_record(folder: str, record: RunRecord, plan: Plan) -> None:
    """Write the record and the plan into the folder of a run, replacing earlier ones.

    Raises:
        BadFile: the folder cannot be written.
    """
    document = {"schema": SCHEMA, **asdict(record)}
    contents = {
        RECORD_FILE: (json.dumps(document, indent=1) + "\n").encode(),
        PLAN_FILE: encode(plan) + b"\n",
    }
    for name, content in contents.items():
        path = Path(folder) / name
        partial = path.with_suffix(".partial")
        try:
            partial.write_bytes(content)
            partial.replace(path)
        except OSError as error:
            raise file_error(path, error) from None


def changes(folder: str, record: RunRecord, earlier: RunRecord, plan: Plan) -> list[str]:
    """List in words what differs from how the run in a folder was started: `clip 1 (before: 2)`."""
    differences = []
    for names, values in (
        (asdict(earlier.recipe), asdict(record.recipe)),
        (earlier.versions, record.versions),
    ):
        for name, value in values.items():
            before = names.get(name)
            if before != value:
                differences.append(f"{name} {_shown(value)} (before: {_shown(before)})")
    parts = _changed_parts(Path(folder) / PLAN_FILE, plan)
    if parts:
        differences.append(f"another plan (other {', '.join(parts)})")
    return differences


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _changed_parts(path: Path, plan: Plan) -> list[str]:
    """Return the parts of a plan that differ from the plan in a file."""
    try:
        earlier = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    document = json.loads(encode(plan))
    return [part for part in PLAN_PARTS if document[part] != earlier.get(part)]


@contextlib.contextmanager
def locked(folder: str, *, is_first: bool, on_note: Callable[[str], None]) -> Iterator[None]:
    """Context in which no other run can use the folder; an empty name locks nothing.

    The system releases the lock of a process that has ended, however it ended. Process 0 holds it
    for all processes of a run.

    Args:
        folder: the folder; created if missing.
        is_first: whether this is process 0.
        on_note: receives a message if the file system has no locks.

    Raises:
        BadInput: another run uses the folder.
    """
    if not folder:
        yield
        return
    with contextlib.ExitStack() as stack:
        holder = ""
        if is_first:
            Path(folder).mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((Path(folder) / LOCK_FILE).open("a+", encoding="utf-8"))
            holder = _lock(file, on_note)
        if not all_agree(not holder):
            raise BadInput(
                f"{folder} is in use by another run{holder and f': {holder}'}. Stop it, or name "
                "another folder."
            )
        yield


def _lock(file: TextIO, on_note: Callable[[str], None]) -> str:
    """Lock a file and write this process into it; return the holder if another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        return file.read().strip() or "an unknown process"
    except OSError as error:
        on_note(f"{file.name}: {error.strerror}; a second run on this folder is not detected.")
        return ""
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return ""
