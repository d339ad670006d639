"""A request, and the sequence that serves it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Request(NamedTuple):
    """What one user asks.

    Args:
        id: its number, given back with the results.
        arrival_s: seconds from the start of the run.
        prompt: tokens of the prompt, at least 1.
        output: tokens to be generated, at least 1; for an engine the most that are allowed.
        prefix: name of the text that its prompt has in common with other prompts, or None.
        shared: leading tokens of the prompt that are this text.
    """

    id: int
    arrival_s: float
    prompt: int
    output: int
    prefix: Hashable = None
    shared: int = 0

    def keys(self, block: int) -> tuple[Hashable, ...]:
        """One key for each full block of the shared prefix."""
        if self.prefix is None:
            return ()
        return tuple((self.prefix, i) for i in range(self.shared // block))


@dataclass(slots=True, eq=False)
class Cached:
    """A full block of keys and values that other sequences may read too.

    `refs` sequences hold it. `id` is the physical block, None until somebody asks for it.
    """

    key: Hashable
    refs: int = 1
    id: int | None = None


class Live:
    """A request while it is served. The scheduler owns it; others only read.

    `target` tokens must be in the KV cache before the next token can be sampled, `past` are there
    (both for prefill only: of a sequence that decodes, the scheduler knows the context). `held`
    are its leading blocks, those that others may read, `n_blocks` all of its blocks. `base` and
    `ticket` are of `decoding.Decoding`. `start_s` is the start of its first pass and `first_s` the
    time of its first token, -1 before.
    """

    __slots__ = (
        "base", "first_s", "generated", "held", "hit", "ids", "keys", "n_blocks", "past",
        "preemptions", "ready", "request", "start_s", "target", "ticket",
    )  # fmt: skip

    def __init__(
        self, request: Request, keys: Sequence[Hashable] = (), ready: bool = False
    ) -> None:
        self.request = request
        self.keys = keys
        self.ready = ready  # its keys and values come from another engine, with a first token
        self.generated = 1 if ready else 0
        self.target = request.prompt
        self.past = 0
        self.n_blocks = 0
        self.held: list[Cached] = []
        self.ids: list[int] = []
        self.base = self.ticket = 0
        self.hit = 0  # prompt tokens that were found in the cache
        self.preemptions = 0
        self.start_s = self.first_s = -1.0

    def __repr__(self) -> str:
        return f"Live({self.request.id}, {self.past} of {self.target}, {self.generated} generated)"
