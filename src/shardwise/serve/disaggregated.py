"""Prompts on some engines, outputs on others, as one engine (DistServe, arXiv 2401.09670).

A request gets its first token from a prefill engine, and all others from a decode engine, to which
the blocks of its prompt are moved. Prompts then do not hold up sequences that decode, and the two
kinds of engines may have different layouts.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from shardwise.errors import BadInput
from shardwise.serve.live import Live, seed_of
from shardwise.serve.phases import DecodeEngine, FirstTokenMask, Prefiller, WaitingPrompts
from shardwise.serve.request import (
    CANCELLED,
    FAILED,
    Deliver,
    EngineStats,
    Generation,
    Token,
)

logger = logging.getLogger(__name__)

MOST_WAITING = 4  # prompts for each decode engine that wait for a place in it, with their blocks

Place = Prefiller | DecodeEngine
P = TypeVar("P", bound=Place)


class DisaggregatedEngine:
    """See `serve.request.Engine`.

    Args:
        prefill: compute prompts and first tokens.
        decode: continue them.
    """

    def __init__(self, prefill: Sequence[Prefiller], decode: Sequence[DecodeEngine]) -> None:
        self.max_context = min(engine.max_context for engine in decode)
        self.vocab = decode[0].vocab
        self.weights_dtype = decode[0].weights_dtype
        self.kv_dtype = decode[0].kv_dtype
        self._prefill = prefill
        self._decode = decode
        self._engines: list[Place] = [*prefill, *decode]
        self._waiting = WaitingPrompts(prefill, MOST_WAITING * len(decode))
        self._lock = threading.Lock()  # of what follows
        self._places: dict[str, Place] = {}  # where each request is, by id
        self._cancelled: set[str] = set()
        self._n_finished = 0

    def submit(self, generation: Generation, deliver: Deliver) -> None:
        """See `serve.request.Engine`."""
        self._decode[0].request_of(generation)  # which checks it
        seed = seed_of(generation.sampling)  # of both engines
        generation = replace(generation, sampling=replace(generation.sampling, seed=seed))

        def deliver_and_count(token: Token) -> None:
            if token.finish:
                self._forget(generation.id)
            deliver(token)

        live = Live(generation=generation, deliver=deliver_and_count, seed=seed)
        with self._lock:
            prefill = self._least_loaded(self._prefill)
            self._places[generation.id] = prefill
        prefill.prefill(_first_token_of(generation), functools.partial(self._receive, live))

    def cancel(self, id: str) -> None:
        """See `serve.request.Engine`."""
        with self._lock:
            place = self._places.get(id)
            if place is None:
                return
            self._cancelled.add(id)
        place.cancel(id)

    def stats(self) -> EngineStats:
        """See `serve.request.Engine`."""
        by_engine = [asdict(engine.stats()) for engine in self._engines]
        totals = {name: sum(stats[name] for stats in by_engine) for name in by_engine[0]}
        for name in ("healthy", "reachable"):
            totals[name] = all(stats[name] for stats in by_engine)
        return EngineStats(**totals | {"finished": self._n_finished})

    def close(self) -> None:
        """See `serve.request.Engine`."""
        for engine in self._engines:
            engine.close()

    def _receive(self, live: Live, first: Token, blocks: Any) -> None:
        """Take the first token of a request, and move it to a decode engine.

        Called from the thread of the prefill engine. A cancellation comes either before the place
        of the request changes, and is seen here, or after it, and goes to the decode engine.
        """
        id = live.generation.id
        with self._lock:
            decode = self._least_loaded(self._decode)
        if first.id < 0 or blocks is None:
            live.end(first.finish)
        else:
            live.take(first._replace(finish=""))
            self._place(live, decode, blocks)
        with self._lock:
            if id in self._cancelled:
                live.end(CANCELLED)
            if not live.ended:
                self._places[id] = decode
                self._waiting.add()
                live.blocks_taken = self._waiting.take
                decode.insert(live)
        if live.ended:
            live.deliver_last()

    def _place(self, live: Live, decode: DecodeEngine, blocks: Any) -> None:
        """Move the blocks of a prompt to the devices of a decode engine."""
        if live.ended:
            return
        try:
            live.prompt_blocks = decode.place(blocks)
        except BadInput as error:
            logger.error("a prompt from the prefill engine is of no use: %s", error)
            live.end(FAILED)
        except Exception:  # of the devices: they may have no memory left
            logger.exception("a prompt could not be moved to its decode engine")
            live.end(FAILED)

    def _least_loaded(self, engines: Sequence[P]) -> P:
        """The engine with the fewest requests."""
        places = list(self._places.values())
        return min(engines, key=lambda engine: sum(place is engine for place in places))

    def _forget(self, id: str) -> None:
        with self._lock:
            self._places.pop(id, None)
            self._cancelled.discard(id)
            self._n_finished += 1


def _first_token_of(generation: Generation) -> Generation:
    """The part of a request that a prefill engine computes."""
    mask = generation.mask and FirstTokenMask(generation.mask.allowed)
    return replace(generation, max_tokens=1, stop_tokens=frozenset(), mask=mask)
