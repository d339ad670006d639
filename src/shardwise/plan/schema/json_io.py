"""Read plan.json: the result equals the plan that was saved."""

from __future__ import annotations

import codecs
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile, IgnoredKey, ShardwiseError, file_error, nearest, raise_all
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.common import SCHEMA, Reason
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.serving_reasons import SERVING_REASONS
from shardwise.plan.schema.training import LAYOUT_FIELDS, Plan
from shardwise.plan.schema.training_reasons import TRAINING_REASONS
from shardwise.plan.schema.validation import TOO_DEEP, hardware_problems, number_problems

AnyPlan = Plan | ServingPlan
# Lists whose rows may have a key `text`: a sentence that `report` makes of the other keys.
ROWS_WITH_TEXT = ("why", "alternatives", "pareto")
PLAN_AGAIN = "Plan again: shardwise plan MODEL HARDWARE ... -o plan.json"


def decode(text: bytes | str, name: str = "plan", folder: Path | None = None) -> AnyPlan:
    """Read a plan from JSON: a `ServingPlan` if its workload has the kind "serve", else a `Plan`.

    Args:
        text: the JSON document.
        name: the name of the document in error messages.
        folder: where the plan lies. The TOML file of its chip may lie there or in the folder above,
            if it is not where the plan says.

    Raises:
        BadFile: not JSON, another schema, a missing key, a value of a wrong type, a number out of
            range, or facts that contradict one another. The message says where.

    Warns:
        IgnoredKey: plans do not have a key of the document.
    """
    import msgspec

    document = _document(text, name)
    if folder:
        _find_chip_files(document, folder)
    for key in ROWS_WITH_TEXT:
        if isinstance(document.get(key), list):
            document[key] = [_without_text(row) for row in document[key]]
    workload = document.get("workload")
    if not isinstance(workload, dict):
        raise BadFile(f"{name}: $.workload is {workload!r:.40}; it must be an object with a kind.")
    is_serving = workload.get("kind") == "serve"
    plan_type: type[AnyPlan] = ServingPlan if is_serving else Plan
    try:
        plan = msgspec.convert(document, plan_type)
        reason_types = SERVING_REASONS if is_serving else TRAINING_REASONS
        plan = replace(plan, why=_reasons(document["why"], reason_types, name))
    except msgspec.ValidationError as error:
        raise BadFile(f"{name}: {error}.") from None
    try:
        raise_all(BadFile, _problems(document, plan))
    except ShardwiseError as error:
        raise BadFile(*(f"{name}: {problem}" for problem in error.problems)) from None
    for note in _unknown_keys(document, _known(plan), "$"):
        warnings.warn(f"{name}: {note}", IgnoredKey, stacklevel=2)
    return plan


def _document(text: bytes | str, name: str) -> dict[str, Any]:
    """The JSON object in the text of a plan, whose schema is that of this version.

    Raises:
        BadFile: not JSON, not an object, another schema, nested too deep, a number out of range.
    """
    import msgspec

    try:
        raw = text.encode() if isinstance(text, str) else text
        document = msgspec.json.decode(raw.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadFile(f"{name} is not JSON: {error}.") from None
    except RecursionError:
        raise BadFile(f"{name} is {TOO_DEEP}.") from None
    if not isinstance(document, dict):
        raise BadFile(f"{name} is JSON, but not a plan: a plan is an object {{...}}.", PLAN_AGAIN)
    schema = document.get("schema")
    if not isinstance(schema, str):
        raise BadFile(f'{name} is JSON, but not a plan: its key "schema" names none.', PLAN_AGAIN)
    if schema != SCHEMA:
        raise BadFile(f'{name} has schema "{schema}"; this version reads "{SCHEMA}".', PLAN_AGAIN)
    raise_all(BadFile, [f"{name}: {problem}" for problem in number_problems(document)])
    return document


def _problems(document: dict[str, Any], plan: AnyPlan) -> list[str]:
    """Problems of a plan whose keys and types are right."""
    if isinstance(plan, Plan):
        missing = [name for name in LAYOUT_FIELDS if name not in document["strategy"]]
        if missing:
            return [f"missing required field `{name}` - at `$.strategy`." for name in missing]
    problems = hardware_problems(plan.hardware)
    if problems:
        return problems
    if isinstance(plan, Plan):
        from shardwise.plan.training.validate import plan_problems as training_problems

        return training_problems(plan)
    from shardwise.plan.serving.validate import plan_problems as serving_problems

    return serving_problems(plan)


def load(path: str | os.PathLike[str]) -> AnyPlan:
    """Read a plan from the JSON file at `path`.

    Raises:
        BadFile: the file is missing, cannot be read, or is not a plan.
    """
    try:
        with open(path, "rb") as file:
            return decode(file.read(), os.fspath(path), Path(path).parent)
    except OSError as error:
        raise file_error(path, error) from None


def _find_chip_files(document: dict[str, Any], folder: Path) -> None:
    """Name the TOML files of chips that lie beside the plan, if they are not where it says."""
    strategy = document.get("strategy")
    engines = strategy if isinstance(strategy, dict) else {}
    for entry, key in (
        (document.get("hardware"), "name"),
        (engines.get("servers"), "hardware"),
        (engines.get("prefill"), "hardware"),
    ):
        if isinstance(entry, dict) and isinstance(entry.get(key), str):
            entry[key] = _with_chip_file(entry[key], folder)


def _with_chip_file(name: str, folder: Path) -> str:
    """The name of a machine, whose chip's file is looked for beside the plan if it has moved."""
    path, toml, size = name.partition(".toml")
    file = Path(path + toml)
    if not toml or file.exists():
        return name
    for candidate in (folder / file.name, folder.parent / file.name):
        if candidate.exists():
            return f"{candidate}{size}"
    return name


def _without_text(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    return {key: value for key, value in row.items() if key != "text"}


def _reasons(
    rows: list[dict[str, Any]], reason_types: dict[str, type[Reason]], name: str
) -> tuple[Reason, ...]:
    """Convert each row to the subclass of `Reason` for its constraint.

    Raises:
        BadFile: unknown constraint.
        msgspec.ValidationError: missing key, or a value of a wrong type.
    """
    import msgspec

    reasons = []
    for index, row in enumerate(rows):
        constraint = row["constraint"]
        if constraint not in reason_types:
            hint = nearest(constraint, reason_types)
            raise BadFile(f'{name}: unknown constraint "{constraint}" at $.why[{index}]. {hint}')
        try:
            reasons.append(msgspec.convert(row, reason_types[constraint]))
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} of `$.why[{index}]`") from None
    return tuple(reasons)


def _known(plan: AnyPlan) -> dict[str, Any]:
    """A document with all keys that are read from the document of a plan."""
    import msgspec

    known: dict[str, Any] = msgspec.to_builtins(plan)
    known["model"]["architecture"] = msgspec.to_builtins(model_of(plan.model.architecture))
    return known


def _unknown_keys(document: Any, known: Any, path: str) -> list[str]:
    """List a note for each key of the document that plans do not have, with similar keys."""
    problems: list[str] = []
    children: list[tuple[Any, Any, str]] = []
    if isinstance(document, dict) and isinstance(known, dict):
        for key, value in document.items():
            if key in known:
                children.append((value, known[key], f"{path}.{key}"))
            else:
                problems.append(f"unknown key {path}.{key} is ignored. {nearest(key, known)}")
    elif isinstance(document, list) and isinstance(known, list | tuple):
        for index, (value, known_value) in enumerate(zip(document, known, strict=False)):
            children.append((value, known_value, f"{path}[{index}]"))
    for value, known_value, child_path in children:
        problems += _unknown_keys(value, known_value, child_path)
    return problems
