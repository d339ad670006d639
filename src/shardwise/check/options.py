"""Compile options shared by the checks of training plans, serving plans and functions."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.cache_folder import cache_folder
from shardwise.check.compiling.process import Limits, OnStage
from shardwise.errors import UnknownName
from shardwise.runtime.program import COLLECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Options for compiling programs.

    Args:
        limits: limits of the time and memory that a compile may use.
        cache: whether compiled programs are read from and written to the cache.
        on_stage: called with the stage of a compile and the seconds since its start.
        collectives: who chooses the collectives of a training step, one of
            `runtime.program.COLLECTIVES`.
        explain: whether a program that does not fit is compiled again, to show what fills the
            memory.
    """

    limits: Limits | None = None
    cache: bool = True
    on_stage: OnStage | None = None
    collectives: str = "plan"
    explain: bool = True

    def __post_init__(self) -> None:
        if self.collectives not in COLLECTIVES:
            raise UnknownName("chooser of collectives", self.collectives, COLLECTIVES)

    @property
    def cache_path(self) -> str:
        """The folder of the cache; "" if it is not used."""
        return str(cache_folder()) if self.cache else ""
