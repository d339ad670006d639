"""The inference engine: a thread that runs the passes that the scheduler chooses.

The scheduler is that of the simulation. It counts tokens and does not need their values, so a pass
is chosen and dispatched before the tokens of the pass before are read: while the device computes,
the host delivers and prepares. What the host learns one pass late, that a sequence has ended, costs
one token, which is dropped. Drafts follow from the tokens: an engine with drafts reads each pass
before it chooses the next.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax

from shardwise.errors import BadInput
from shardwise.runtime.recording import Recorder
from shardwise.runtime.serving.sampling import Drawn, LogProbabilities, Verified
from shardwise.serve.drafts import Drafter, with_drafts
from shardwise.serve.live import Live, seed_of
from shardwise.serve.programs import Programs, Row
from shardwise.serve.request import (
    CANCELLED,
    FAILED,
    Deliver,
    EngineStats,
    Generation,
    Token,
)
from shardwise.serve.scores import keep_scores, score_of
from shardwise.simulate.block_keys import block_keys
from shardwise.simulate.limits import Limits
from shardwise.simulate.passes import Pass
from shardwise.simulate.pooled import PooledScheduler
from shardwise.simulate.request import Request, SequenceState

logger = logging.getLogger(__name__)

COUNTS = ("prompt", "cached", "generated", "drafted", "accepted", "passes", "finished")


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A batch whose tokens are drawn or scored on the device, and not read yet."""

    batch: Sequence[Row]
    drawn: Drawn | Verified | LogProbabilities


class InferenceEngine:
    """See `serve.request.Engine`.

    Args:
        programs: the compiled programs, with weights and cache.
        limits: limits of the scheduler, of all pools together.
        drafter: drafts as many tokens as a sequence may gain in a pass besides one; None for no
            drafts.
    """

    def __init__(self, programs: Programs, limits: Limits, drafter: Drafter | None = None) -> None:
        self.max_context = programs.max_context
        self.vocab = programs.forward.engine.config.vocab
        self.weights_dtype = programs.forward.engine.job.weights
        self.kv_dtype = programs.forward.engine.job.kv
        self._programs = programs
        self._drafter = drafter
        self._scheduler = PooledScheduler(limits, programs.n_pools, self._text_keys)
        self._limits = limits
        self._live: dict[str, Live] = {}  # by id
        self._by_state: dict[SequenceState, Live] = {}
        self._free_slots = list(range(programs.n_slots))
        self._inbox: deque[Callable[[], object]] = deque()
        self._wake = threading.Condition()
        self._dispatched: list[Dispatched] = []
        self._ended: list[Live] = []  # whose blocks are not released yet
        self._read_first: set[Live] = set()  # those with a slot that need their tokens for a draw
        self._request_ids = itertools.count()
        self._counts = dict.fromkeys(COUNTS, 0)
        self.recorder = Recorder()
        self._closing = False
        self._healthy = True
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def submit(self, generation: Generation, deliver: Deliver) -> None:
        """See `serve.request.Engine`."""
        request = self.request_of(generation)
        self._post(lambda: self._add(generation, request, deliver))

    def request_of(self, generation: Generation) -> Request:
        """A request of the scheduler.

        Raises:
            BadInput: see `submit`.
        """
        n_tokens = len(generation.prompt) + generation.max_tokens
        if n_tokens > self.max_context:
            raise BadInput(
                f"prompt {len(generation.prompt):,} and max_tokens {generation.max_tokens:,} are "
                f"{n_tokens:,} tokens, and the engine serves up to {self.max_context:,}. Shorten "
                "the prompt or lower max_tokens."
            )
        if not generation.prompt or generation.max_tokens < 1:
            raise BadInput("a request needs at least one token of prompt and one of output.")
        return Request(
            next(self._request_ids),
            time.monotonic(),
            len(generation.prompt),
            generation.max_tokens,
            client=generation.client,
        )

    def cancel(self, id: str) -> None:
        """See `serve.request.Engine`."""
        self._post(lambda: self._cancel(id))

    def stats(self) -> EngineStats:
        """See `serve.request.Engine`."""
        scheduler = self._scheduler
        return EngineStats(
            waiting=scheduler.waiting + len(self._inbox),
            running=scheduler.running,
            blocks_used=scheduler.blocks_used,
            blocks=self._limits.n_blocks,
            prompt_tokens=self._counts["prompt"],
            cached_tokens=self._counts["cached"],
            generated_tokens=self._counts["generated"],
            preemptions=scheduler.preemptions,
            passes=self._counts["passes"],
            finished=self._counts["finished"],
            healthy=self._healthy,
            drafted_tokens=self._counts["drafted"],
            accepted_tokens=self._counts["accepted"],
        )

    def close(self) -> None:
        """See `serve.request.Engine`."""
        self._closing = True
        self._post(lambda: None)
        self._thread.join()

    def _post(self, action: Callable[[], object]) -> None:
        """Have the engine's thread run an action before its next pass."""
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    def _loop(self) -> None:
        try:
            while not self._closing:
                self._step()
        except Exception:
            logger.exception("the engine has stopped")
            self._healthy = False
            self._end_all(FAILED)
            while not self._closing:
                self._take_actions(wait=True)
                self._end_all(FAILED)
        self._take_actions(wait=False)
        self._end_all(CANCELLED)

    @property
    def _has_work(self) -> bool:
        """Whether there is a pass to run."""
        return self._scheduler.has_work

    def _step(self) -> None:
        """Dispatch the next pass, then read the tokens of the one before."""
        self._take_actions(wait=not self._dispatched and not self._has_work)
        if self._read_first:
            self._deliver(self._take_dispatched())
            self._forget_ended()
        before = self._take_dispatched()
        if not self._has_work:
            self._deliver(before)
            self._forget_ended()
            return
        scheduled = self._scheduler.schedule()
        copies = self._scheduler.take_copies()
        self._programs.copy_blocks(copies)
        if self._drafter is not None:
            self._drafter.copy_blocks(copies)
        self._dispatched = self._dispatch(scheduled)
        gained = self._gained(scheduled)
        self._deliver(before)
        if self._drafter is not None:
            self._deliver(self._take_dispatched())
        self._scheduler.advance(gained=gained, stopped=[live.state for live in self._ended])
        self._counts["passes"] += 1
        self.recorder.count()
        self._forget_ended()

    def _take_dispatched(self) -> list[Dispatched]:
        dispatched = self._dispatched
        self._dispatched = []
        return dispatched

    def _take_actions(self, wait: bool) -> None:
        """Run what other threads have posted."""
        with self._wake:
            if wait and not self._inbox:
                self._wake.wait()
            actions = list(self._inbox)
            self._inbox.clear()
        for action in actions:
            action()

    def _add(self, generation: Generation, request: Request, deliver: Deliver) -> Live:
        keys = block_keys(generation.prompt, self._limits.block_tokens)
        live = Live(
            generation=generation,
            deliver=deliver,
            block_keys=keys,
            seed=seed_of(generation.sampling),
        )
        cached_keys = () if generation.scores_prompt else keys
        self._register(live, self._scheduler.add(request, cached_keys))
        self._counts["prompt"] += len(generation.prompt)
        return live

    def _register(self, live: Live, state: SequenceState) -> None:
        live.state = state
        self._live[live.generation.id] = live
        self._by_state[state] = live

    def _cancel(self, id: str) -> None:
        live = self._live.get(id)
        if live is not None:
            live.end(CANCELLED)
            self._ended.append(live)
            self._forget_ended()

    def _end_all(self, finish: str) -> None:
        for live in self._live.values():
            if not live.ended:
                live.end(finish)
                self._ended.append(live)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Release the blocks and slots of requests that have ended, and tell their clients.

        Only between two passes.
        """
        for live in self._ended:
            self._scheduler.cancel(live.state)
            self._release_slot(live)
            self._live.pop(live.generation.id, None)
            self._by_state.pop(live.state, None)
            self._counts["finished"] += 1
            live.deliver_last()
        self._ended = []

    def _text_keys(self, state: SequenceState) -> list[bytes]:
        """Keys of the full blocks of all tokens that are known of a sequence."""
        live = self._by_state[state]
        if live.generation.scores_prompt:  # after a preemption, too
            return []
        live.block_keys = block_keys(
            live.tokens, self._limits.block_tokens, first_keys=live.block_keys
        )
        return live.block_keys

    def _take_slot(self, live: Live) -> None:
        live.slot = self._free_slots.pop()
        if live.needs_tokens:
            self._read_first.add(live)

    def _release_slot(self, live: Live) -> None:
        if live.slot is not None:
            self._free_slots.append(live.slot)
            live.slot = None
            self._read_first.discard(live)

    def _dispatch(self, scheduled: Pass) -> list[Dispatched]:
        """Start the programs of a pass: decode first, then the chunks of prompts."""
        self._release_slots_of_preempted()
        decode_rows = []
        for state in scheduled.decode:
            past = self._scheduler.context(state)
            decode_rows.append(self._row(state, past, ()))
        chunk_rows = []
        for chunk in scheduled.chunks:
            live = self._by_state[chunk.sequence]
            if live.slot is None:
                self._take_slot(live)
            stop = chunk.past + chunk.tokens
            tokens = live.tokens[chunk.past : stop]
            is_last = stop == chunk.sequence.prefill_target
            chunk_rows.append(self._row(chunk.sequence, chunk.past, tokens, is_last))
        if self._drafter is not None:
            self._drafter.read_prompts(chunk_rows)
        plain_rows = [row for row in chunk_rows if not row.live.generation.scores_prompt]
        scored_rows = [row for row in chunk_rows if row.live.generation.scores_prompt]
        return [*self._decode(decode_rows), *self._run(plain_rows), *self._score(scored_rows)]

    def _score(self, rows: Sequence[Row]) -> Iterator[Dispatched]:
        """Run chunks of prompts whose tokens are scored, and draw their next tokens."""
        for chunk in rows:
            for row in self._programs.scored_rows(chunk):
                yield Dispatched([row], self._programs.score(row))
                if row.draws:
                    yield Dispatched([row], self._programs.draw([row]))

    def _release_slots_of_preempted(self) -> None:
        """Release the slots of sequences that have lost their blocks to others."""
        for state in self._scheduler.preempted:
            self._release_slot(self._by_state[state])

    def _row(
        self, state: SequenceState, past: int, tokens: Sequence[int], draws: bool = True
    ) -> Row:
        live = self._by_state[state]
        if live.slot is None:
            raise RuntimeError(f"request {live.generation.id} runs without a slot")
        table = self._scheduler.block_table(state)
        pool = state.pool
        return Row(
            live=live, slot=live.slot, pool=pool, tokens=tokens, past=past, table=table, draws=draws
        )

    def _decode(self, rows: list[Row]) -> Iterator[Dispatched]:
        """Run rows of sequences that decode, with drafts if there are any."""
        if self._drafter is not None and rows:
            rows = self._programs.placed(rows)
            rows = with_drafts(rows, self._drafter, self._limits.max_gain - 1)
            n_drafted = sum(row.n_new - 1 for row in rows)
            self._counts["drafted"] += n_drafted
            if n_drafted:
                return iter([Dispatched(rows, self._programs.verify(rows))])
        return self._run(rows)

    def _gained(self, scheduled: Pass) -> dict[SequenceState, int]:
        """Wait for the number of tokens that each sequence has gained, if there are drafts."""
        if self._drafter is None:
            return {}
        gained = dict.fromkeys(scheduled.decode, 1)
        for part in self._dispatched:
            if isinstance(part.drawn, Verified):
                accepted_B = jax.device_get(part.drawn.accepted_B).tolist()
                for row in part.batch:
                    n_accepted = accepted_B[row.place]
                    gained[row.live.state] += n_accepted
                    self._counts["accepted"] += n_accepted
        return gained

    def _run(self, rows: Sequence[Row]) -> Iterator[Dispatched]:
        """Run rows in batches, and draw their next tokens."""
        for batch in self._programs.batches(rows):
            self._programs.logits(batch)
            if any(row.draws for row in batch):
                yield Dispatched(batch, self._programs.draw(batch))

    def _deliver(self, dispatched: Sequence[Dispatched]) -> None:
        """Wait for the tokens of batches, and deliver them."""
        for part in dispatched:
            drawn = jax.device_get(part.drawn)
            if isinstance(drawn, LogProbabilities):
                keep_scores(part.batch[0], drawn)
                continue
            for row in part.batch:
                if row.draws:
                    n_top = row.live.generation.sampling.logprobs
                    self._take(row.live, _tokens(drawn, row.place, n_top))

    def _take(self, live: Live, tokens: Sequence[Token]) -> None:
        """Deliver tokens up to the end of the output."""
        for token in tokens:
            if live.ended:
                return
            if live.n_generated == 0:
                self._counts["cached"] += live.state.hit_tokens
                token = token._replace(cached=live.state.hit_tokens)
            live.take(token)
            self._counts["generated"] += 1
            if live.ended:
                self._ended.append(live)


def _tokens(drawn: Drawn | Verified, row: int, n_top: int | None) -> list[Token]:
    """The tokens of one row: the drawn one, and those after the accepted drafts."""
    if isinstance(drawn, Drawn):
        return [_token(drawn, row, n_top)]
    next_K = drawn.next_BK[row, : drawn.accepted_B[row]]
    return [_token(drawn.first, row, n_top), *(Token(id) for id in next_K.tolist())]


def _token(drawn: Drawn, row: int, n_top: int | None) -> Token:
    """The token of one row, with its log-probabilities if they were asked for."""
    id = int(drawn.token_B[row])
    if n_top is None or drawn.log_probabilities is None:
        return Token(id)
    logprobs = drawn.log_probabilities
    return Token(id, *score_of(logprobs, (row,), n_top))
