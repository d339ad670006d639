"""What is compared, told apart by what it is: plans, runs, traces, verdicts, loads of a server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from shardwise.check.serving import ServingVerdict
from shardwise.check.user.function import FunctionReport
from shardwise.check.verdict import Verdict
from shardwise.errors import BadFile, file_error
from shardwise.plan.schema.json_io import AnyPlan, decode, load
from shardwise.profile.account import profile_devices, read_devices
from shardwise.profile.files import SUFFIX
from shardwise.profile.result import Profile
from shardwise.serve.load.measurement import Measurement
from shardwise.train.metrics import StepRecord
from shardwise.train.run import METRICS
from shardwise.train.run_folder import PLAN_FILE

LINES = ".jsonl"
LEAST_OF_STEP = {"step", "step_s"}  # what a line of any trainer has
NOT_FINITE = ("nan", "inf", "-inf")  # as metrics.jsonl writes them
KINDS = (
    "a plan.json, a folder or metrics.jsonl of shardwise train, a trace or the saved "
    "profile --json of one, a saved check --json, or a saved bench --json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """The records of a training run.

    Args:
        plan: the plan beside them; None if there is none.
    """

    path: str
    records: tuple[StepRecord, ...]
    plan: AnyPlan | None = None

    @property
    def memory_bytes(self) -> float | None:
        """The peak of the run; None if the devices do not report it."""
        return max((record.memory_bytes or 0.0 for record in self.records), default=0.0) or None


Input = AnyPlan | RunLog | Profile | Verdict | ServingVerdict | FunctionReport | Measurement


class CommandError(msgspec.Struct):
    problems: list[str]


class FailedCommand(msgspec.Struct):
    """What a command with --json prints when it fails."""

    error: CommandError


def read_input(path: str) -> Input:
    """Read a file or folder, and find out what it is.

    Raises:
        BadFile: there is none, or it is none of the things that can be compared.
    """
    given = Path(path)
    if given.is_dir():
        if (given / METRICS).is_file():
            return _read_run(given / METRICS, given / PLAN_FILE)
        return _read_trace(path)
    if path.endswith(SUFFIX):
        return _read_trace(path)
    try:
        content = given.read_bytes()
    except OSError as error:
        raise file_error(path, error) from None
    if path.endswith(LINES):
        return _read_run(given, given.parent / PLAN_FILE)
    return _read_document(path, content)


def _read_trace(path: str) -> Profile:
    return profile_devices(path, read_devices(path))


def _read_run(metrics: Path, plan: Path) -> RunLog:
    names = {field.name for field in fields(StepRecord)}
    records = []
    missing: set[str] = set()
    for number, line in enumerate(metrics.read_text(encoding="utf-8").splitlines(), 1):
        try:
            document = json.loads(line)
            if document.keys() >= LEAST_OF_STEP:
                record = msgspec.convert(_numbers(document, names), StepRecord)
                if not 0 < record.step_s < math.inf:
                    raise BadFile(
                        f"{metrics}: line {number}: a step takes "
                        f"{record.step_s:g} seconds (step_s)."
                    )
                records.append(record)
            elif "step" in document:
                missing |= LEAST_OF_STEP - document.keys()
        except (ValueError, AttributeError, msgspec.ValidationError):
            raise BadFile(
                f"{metrics}: line {number} is no step of shardwise train. Of another trainer, give "
                'lines as {"step": 1, "step_s": 2.5}.'
            ) from None
    if not records and missing:
        raise BadFile(f"{metrics}: its steps lack {', '.join(sorted(missing))}.")
    if not records:
        raise BadFile(f"{metrics} has no steps. shardwise train --log FILE writes one a line.")
    planned = load(plan) if plan.is_file() else None
    return RunLog(path=str(metrics), records=tuple(records), plan=planned)


def _numbers(document: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """The fields of a step; numbers that are not finite are texts in the file.

    What another trainer does not log is not a number.
    """
    unknown = {"steps": document["step"], "bad": False, "memory_bytes": None}
    values = {name: document.get(name, unknown.get(name, math.nan)) for name in names}
    for name, value in values.items():
        if value in NOT_FINITE:
            values[name] = float(value)
    return values


def _read_document(path: str, content: bytes) -> Input:
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError):
        raise BadFile(f"{path} is no JSON. What can be compared: {KINDS}.") from None
    keys = document.keys() if isinstance(document, dict) else set()
    if {"schema", "workload"} <= keys:
        return decode(content, path, Path(path).parent)
    try:
        if keys == {"error"}:
            error = msgspec.convert(document, FailedCommand).error
            raise BadFile(f"{path} is the error of a command, not its result:", *error.problems)
        if {"categories", "operations", "step_s"} <= keys:
            return msgspec.convert(document, Profile)
        if {"verdict", "faults"} <= keys:
            return msgspec.convert(document, FunctionReport)
        if {"decode", "prefill", "hardware"} <= keys:
            return msgspec.convert(document, ServingVerdict)
        if {"verdict", "planned"} <= keys:
            return msgspec.convert(document, Verdict)
        if {"rows", "pareto", "url"} <= keys and document["rows"]:
            return msgspec.convert(document["rows"][0], Measurement)
    except msgspec.ValidationError as error:
        raise BadFile(f"{path}: {error}.") from None
    raise BadFile(f"{path} is nothing that can be compared: {KINDS}.")
