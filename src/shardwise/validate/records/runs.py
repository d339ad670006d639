"""What published runs of training and of serving have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.hardware import System
from shardwise.models.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """A run, or a number of it, with the reliability of its record.

    Args:
        id: Id of the record.
        source: Repository, paper or URL that published it.
        group: Common name of all records of one source, model and chip. Constants are fitted on all
            records of a group or on none.
        quality: "A" if the source states every item, "B" if one was inferred or rounded, "C" for a
            known anomaly.
        tier: "core", or "extra" for repeats, tiny models and under-specified records.
    """

    id: str
    source: str
    group: str
    quality: str
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun(Graded):
    """A published measurement.

    Args:
        date: Date of publication, as the record states it.
        assumed: Item that the source leaves open -> the assumption.
        flags: Known inconsistencies of the record.
        notes: Remarks of the record.
    """

    date: str
    framework: str
    config: ModelConfig
    system: System
    assumed: Mapping[str, str] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = ()
    notes: str = ""
