"""Engines for one phase of a request: one computes prompts, another continues them.

The blocks of a prompt's KV cache move from the one to the other with the first token. In the
scheduler of the second engine they are admitted like those of the simulation (`kv_ready`); a
sequence that it preempts is computed again there, prompt and all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.engine import Dispatched, InferenceEngine
from shardwise.serve.live import Live
from shardwise.serve.programs import Row
from shardwise.serve.request import EngineStats, Generation, Token
from shardwise.simulate.request import Request, SequenceState

DeliverPrompt = Callable[[Token, Any], None]  # (first token, blocks for `DecodeEngine.place`)


class FirstTokenMask:
    """The grammar of a first token alone; see `TokenMask`.

    Args:
        allowed: returns the bits of the tokens that it allows.
    """

    complete = False

    def __init__(self, allowed: Callable[[], bytes]) -> None:
        self.allowed = allowed

    def advance(self, token: int) -> None:
        """See `TokenMask`; nothing comes after it."""


class Prefiller(Protocol):
    """Computes prompts for other engines; its methods may be called from any thread."""

    def prefill(self, generation: Generation, deliver: DeliverPrompt) -> None:
        """Compute a prompt and draw its first token.

        Args:
            generation: of one token.
            deliver: called once, from another thread. The blocks of the prompt are None if it was
                cancelled or failed, as `finish` of the token says then.

        Raises:
            BadInput: the prompt is too long.
        """
        ...

    def cancel(self, id: str) -> None:
        """End a request early; no error if it has ended already."""
        ...

    def pause(self, paused: bool) -> None:
        """Deliver no further prompt until this is called with False."""
        ...

    def stats(self) -> EngineStats:
        """Counters and present state."""
        ...

    def close(self) -> None:
        """Cancel what runs."""
        ...


class WaitingPrompts:
    """Counts prompts that wait to be taken over; while there are many, no more are computed.

    Args:
        prefillers: that compute them.
        most: the number that makes them pause.
    """

    def __init__(self, prefillers: Sequence[Prefiller], most: int) -> None:
        self._prefillers = prefillers
        self._most = most
        self._count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count one that waits."""
        self._change(1)

    def take(self) -> None:
        """Count one that waits no longer."""
        self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            was_full = self._count >= self._most
            self._count += by
            is_full = self._count >= self._most
            if is_full != was_full:
                for prefiller in self._prefillers:
                    prefiller.pause(is_full)


class PrefillEngine(InferenceEngine):
    """An engine that computes prompts; see `Prefiller`."""

    _paused = False

    def prefill(self, generation: Generation, deliver: DeliverPrompt) -> None:
        """See `Prefiller`."""
        request = self.request_of(generation)

        def add() -> None:
            live = self._add(generation, request, lambda token: deliver(token, live.prompt_blocks))
            live.sends_blocks = True

        self._post(add)

    def pause(self, paused: bool) -> None:
        """See `Prefiller`."""
        self._paused = paused
        self._post(lambda: None)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block that `prefill` delivers."""
        return self._limits.block_tokens

    @property
    def _has_work(self) -> bool:
        return super()._has_work and not self._paused

    def _run(self, rows: Sequence[Row]) -> Iterator[Dispatched]:
        """Run rows, and read the blocks of the prompts that are complete.

        The blocks are read before a later pass writes to them.
        """
        yield from super()._run(rows)
        for row in rows:
            if row.draws and row.live.sends_blocks:
                row.live.prompt_blocks = self._programs.read_blocks(row)


class DecodeEngine(InferenceEngine):
    """An engine that continues requests whose prompts another has computed."""

    def place(self, blocks: Any) -> list[Tree]:
        """Move the blocks of a prompt to the devices of this engine, for `insert`.

        Raises:
            BadInput: they are of another model, or have another dtype.
        """
        return self._programs.transfer.place(blocks)

    def insert(self, live: Live) -> None:
        """Continue a request.

        Args:
            live: the request, with its first token and the blocks of its prompt.
        """
        request = self.request_of(live.generation)
        self._post(lambda: self._insert(live, request))

    def _insert(self, live: Live, request: Request) -> None:
        self._register(live, self._scheduler.add(request, (), kv_ready=True))

    def _row(
        self, state: SequenceState, past: int, tokens: Sequence[int], draws: bool = True
    ) -> Row:
        """A row of a batch; the blocks of a prompt are written before its first one."""
        live = self._by_state[state]
        if live.prompt_blocks is not None:
            self._take_slot(live)
            prompt = super()._row(state, 0, live.generation.prompt, draws=False)
            self._programs.write_blocks(prompt, live.prompt_blocks)
            if self._drafter is not None:
                self._drafter.read_prompts([prompt])
            live.drop_prompt_blocks()
            tokens = live.tokens[-1:]  # the first one of the output, which is in no slot
        return super()._row(state, past, tokens, draws)

    def _text_keys(self, state: SequenceState) -> list[bytes]:
        """See `InferenceEngine`; none while the blocks of the sequence have no contents."""
        if self._by_state[state].prompt_blocks is not None:
            return []
        return super()._text_keys(state)

    def _release_slots_of_preempted(self) -> None:
        super()._release_slots_of_preempted()
        for state in self._scheduler.preempted:
            self._by_state[state].drop_prompt_blocks()

    def _forget_ended(self) -> None:
        for live in self._ended:
            live.drop_prompt_blocks()
        super()._forget_ended()
