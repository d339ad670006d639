"""plan.json: a plan as one JSON document, and back, equal."""

from __future__ import annotations

import os
from typing import Any

from shardwise.errors import BadFile, nearest
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import LAYOUT_WORDS, SCHEMA, Plan
from shardwise.vocabulary import REMAT_POLICIES

LATER = ("loss_chunks",)  # words that plans from before are without: they are at their default
AnyPlan = Plan | ServingPlan


def encode(value: Any) -> bytes:
    """Any result of Shardwise as JSON, indented for people and diffs."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def decode(text: bytes | str, name: str = "plan") -> AnyPlan:
    """A plan from its JSON: of training, or of serving where its workload says so.

    Raises:
        BadFile: not JSON, another schema, an unknown or missing key, a wrong type; says where.
    """
    import msgspec

    try:
        raw = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadFile(f"{name} is not JSON: {error}.") from None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise BadFile(f'{name} has schema "{schema}"; this version reads "{SCHEMA}".')
    _complete(raw)
    try:
        work = raw.get("workload")
        kind = work.get("kind") if isinstance(work, dict) else None
        schema_of: type[AnyPlan] = ServingPlan if kind == "serve" else Plan
        plan = msgspec.convert(raw, schema_of)
    except msgspec.ValidationError as error:
        raise BadFile(f"{name}: {error}.") from None
    problems = _unknown(raw, msgspec.to_builtins(plan), "$")
    if isinstance(plan, Plan):
        problems += _missing(raw["strategy"])
    if problems:
        raise BadFile(*(f"{name}: {p}" for p in problems))
    return plan


def load(path: str | os.PathLike[str]) -> AnyPlan:
    """Read plan.json.

    Raises:
        BadFile: it is missing, cannot be read, or is not a plan.
    """
    try:
        with open(path, "rb") as file:
            return decode(file.read(), os.fspath(path))
    except OSError as error:
        raise BadFile(f"{os.fspath(path)}: {error.strerror}.") from None


def save(plan: AnyPlan, path: str | os.PathLike[str]) -> None:
    """Write plan.json.

    Raises:
        BadFile: it cannot be written.
    """
    try:
        with open(path, "wb") as file:
            file.write(encode(plan) + b"\n")
    except OSError as error:
        raise BadFile(f"{os.fspath(path)}: {error.strerror}. Nothing was saved.") from None


def _complete(raw: dict[str, Any]) -> None:
    """Add to a plan from before what full remat runs again: it named no part."""
    strategy = raw.get("strategy")
    if isinstance(strategy, dict) and strategy.get("remat") == "full":
        strategy["recomputed"] = strategy.get("recomputed") or list(REMAT_POLICIES["full"])


def _missing(strategy: dict[str, Any]) -> list[str]:
    """Words of a layout that a document leaves out, though plans always had them."""
    words = [name for name in LAYOUT_WORDS if name not in strategy and name not in LATER]
    return [f"missing required field `{name}` - at `$.strategy`." for name in words]


def _unknown(raw: Any, known: Any, at: str) -> list[str]:
    """Keys of the document that a Plan does not have, with the close ones."""
    if isinstance(raw, dict) and isinstance(known, dict):
        found = [
            f"unknown key {at}.{key}. {nearest(key, known)}" for key in raw if key not in known
        ]
        return found + [
            p for k in raw if k in known for p in _unknown(raw[k], known[k], f"{at}.{k}")
        ]
    if isinstance(raw, list) and isinstance(known, list | tuple):
        return [
            p
            for i, (r, k) in enumerate(zip(raw, known, strict=False))
            for p in _unknown(r, k, f"{at}[{i}]")
        ]
    return []
