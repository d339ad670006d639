"""Options of a check that training plans, serving plans and functions share."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.compiling.cache import cache_folder
from shardwise.check.compiling.process import Limits, OnStage
from shardwise.errors import UnknownName
from shardwise.runtime.program import COLLECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options for compiling programs.

    Args:
        limits: time and memory that a compile may take.
        cache: whether programs are read from and written to the cache.
        on_stage: called with the stage of a compile and its seconds so far.
        collectives: who chooses those of a training step, of `runtime.program.COLLECTIVES`.
    """

    limits: Limits | None = None
    cache: bool = True
    on_stage: OnStage | None = None
    collectives: str = "plan"

    def __post_init__(self) -> None:
        if self.collectives not in COLLECTIVES:
            raise UnknownName("chooser of collectives", self.collectives, COLLECTIVES)

    @property
    def cache_path(self) -> str:
        """The folder of the cache, "" when it is off."""
        return str(cache_folder()) if self.cache else ""
