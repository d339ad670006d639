"""Continuous batching: what runs in each pass of an engine.

An engine calls `schedule` for a pass, runs it, and calls `advance`; a simulation does the same with
a virtual clock. Requests are admitted in the order of their arrival (Orca, OSDI 2022); when blocks
run out, the sequence admitted last gives its own back and is computed again later (vLLM,
arXiv 2309.06180, section 4.5); prompts may be cut to share a pass with sequences that decode
(Sarathi-Serve, arXiv 2403.02310).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.simulate.blocks import Blocks
from shardwise.simulate.decoding import Decoding
from shardwise.simulate.limits import Limits
from shardwise.simulate.passes import NOTHING, Advanced, Chunk, Pass
from shardwise.simulate.request import Live, Request


class Scheduler:
    """The queue, the running sequences and their blocks.

    Args:
        limits: what a pass may hold, and the KV cache.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.blocks = Blocks(limits.n_blocks, limits.block)
        self.decoding = Decoding(limits)
        self.waiting: deque[Live] = deque()
        self.preemptions = 0
        self._partial: Live | None = None  # the one prompt that is computed in part
        self._pass = NOTHING
        self._stuck = False  # the first in the queue finds no blocks until some are given back
        self._keep = int(limits.watermark * limits.n_blocks)
        self._shares = limits.paged and limits.prefix_cache

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self.decoding) + (self._partial is not None)

    @property
    def has_work(self) -> bool:
        """Whether a pass would do something."""
        return bool(self.waiting) or self.running > 0

    @property
    def is_open(self) -> bool:
        """Whether a request that arrives now could join the next pass."""
        return not self.waiting and self.running < self.limits.max_sequences

    def add(
        self, request: Request, keys: Sequence[Hashable] | None = None, ready: bool = False
    ) -> Live:
        """Put a request at the end of the queue.

        Args:
            request: what is asked.
            keys: one key for each full block of the prompt that others may share, so that equal
                keys mean equal contents and equal blocks before; by default those of its prefix.
            ready: its keys and values and its first token come from another engine.

        Raises:
            BadInput: it could never be served.
        """
        if request.prompt < 1 or request.output < 1 + ready:
            raise BadInput(
                f"request {request.id}: prompt {request.prompt} and output {request.output} must "
                f"be at least 1{' and 2' if ready else ''}."
            )
        need = self.limits.blocks_for(request)
        if need > self.limits.n_blocks:
            raise BadInput(
                f"request {request.id}: prompt {request.prompt:,} and output {request.output:,} "
                f"need {need:,} blocks of {self.limits.block} tokens, the KV cache has "
                f"{self.limits.n_blocks:,}. Shorten it or enlarge the cache."
            )
        if not self._shares or ready:
            keys = ()
        elif keys is None:
            keys = request.keys(self.limits.block)
        live = Live(request, keys, ready)
        self.waiting.append(live)
        return live

    def schedule(self) -> Pass:
        """Choose the next pass; `NOTHING` when nobody asks for anything."""
        chunks: list[Chunk] = []
        self._take_ready()
        if not self.limits.chunked:
            self._admit(chunks, self.limits.max_tokens)
            if chunks:
                return self._set(NOTHING, chunks)
        self._make_room()
        decoding = self.decoding
        n = len(decoding)
        if self.limits.chunked:
            budget = self.limits.max_tokens - n
            if self._partial is not None:
                budget -= self._cut(self._partial, chunks, budget)
            self._admit(chunks, budget)
        base = Pass(decoding.members, n, decoding.mean_read(1), (), 0, 0) if n else NOTHING
        return self._set(base, chunks)

    def advance(
        self, n: int = 1, gained: Mapping[Live, int] | None = None, stopped: Iterable[Live] = ()
    ) -> Advanced:
        """The pass has run (`n` times, see `steady`): tokens were sampled.

        Args:
            n: how often.
            gained: tokens that sequences which decode have gained, where it was less than the
                limits' `tokens_per_pass`; give that as the most that a pass can bring, then.
            stopped: sequences of the pass that sampled their last token before their `output`.
        """
        done, decoding = self._pass, self.decoding
        prefilled: list[Live] = []
        ended: list[Live] = []
        if done.n_decode:
            if n > 1:
                self.blocks.take(decoding.blocks(n) - decoding.blocks(1))
            if gained:
                self._give_back(gained)
            ended = decoding.run(n, gained or {})
        for chunk in done.chunks:
            live = chunk.live
            live.past += chunk.tokens
            if live.keys:
                self.blocks.publish(live)
                self._stuck = False
            if live.past < live.target:
                self._partial = live
                continue
            if live is self._partial:
                self._partial = None
            prefilled.append(live)
            live.generated += 1
            if live.generated == live.request.output:
                ended.append(live)
            else:
                decoding.join(live, live.past)
        for live in stopped:
            if live in decoding:
                decoding.leave(live)
                ended.append(live)
        for live in ended:
            self.blocks.release(live)
            self._stuck = False
        self._pass = NOTHING
        return Advanced(prefilled, ended)

    def cancel(self, live: Live) -> None:
        """Forget a request, waiting or running; between `advance` and `schedule`."""
        if live in self.decoding:
            self.decoding.leave(live)
        elif live is self._partial:
            self._partial = None
        elif live in self.waiting:
            self.waiting.remove(live)
        self.blocks.release(live)
        self._stuck = False

    def steady(self) -> int:
        """How many passes from the scheduled one on are alike, if nobody arrives and none stops.

        No prompt is under way or can be admitted, none ends before the last of them, and there are
        blocks for all. Where `is_open` is false, arrivals change nothing either.
        """
        could_admit = self.waiting and not self._stuck
        if self._pass.chunks or (could_admit and self.running < self.limits.max_sequences):
            return 1
        n = self.decoding.passes_to_end()
        # Blocks of the scheduled pass are taken already.
        return self.decoding.affordable(n, self.blocks.available + self.decoding.blocks(1))

    def table(self, live: Live) -> list[int]:
        """Physical blocks of a sequence of the scheduled pass, in the order of its tokens."""
        if live in self.decoding and self.limits.paged:
            context = self.decoding.context(live) + self.decoding.gain(1)
            return self.blocks.table(live, ceil_div(context, self.limits.block))
        return self.blocks.table(live, live.n_blocks)

    def _give_back(self, gained: Mapping[Live, int]) -> None:
        """Take back what was taken for tokens that were not gained."""
        if not self.limits.paged:
            return
        block = self.limits.block
        for live, tokens in gained.items():
            context = self.decoding.context(live)
            taken = ceil_div(context + self.decoding.gain(1), block)
            self.blocks.shrink(live, taken, ceil_div(context + tokens, block))
            self._stuck = False

    def _set(self, base: Pass, chunks: list[Chunk]) -> Pass:
        if chunks:
            prefill = pairs = 0
            for chunk in chunks:
                prefill += chunk.tokens
                pairs += chunk.pairs
            base = Pass(base.decode, base.n_decode, base.kv_tokens, tuple(chunks), prefill, pairs)
        self._pass = base
        return base

    def _take_ready(self) -> None:
        """Admit sequences whose keys and values are here: they decode at once."""
        while self.waiting and self.waiting[0].ready and self._place(self.waiting[0]):
            live = self.waiting.popleft()
            live.ready = False  # once preempted, it is computed here
            live.past = live.target
            self.decoding.join(live, live.past)

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        """Start prompts in the order of the queue while there is room for them."""
        waiting, whole = self.waiting, not self.limits.chunked
        taken = 0  # admitted here and not yet among those that run
        while waiting and budget > 0 and not waiting[0].ready:
            if whole and chunks and waiting[0].target > budget:
                return
            if not self._place(waiting[0], taken):
                return
            live = waiting.popleft()
            taken += 1
            budget -= self._cut(live, chunks, live.target if whole else budget)

    def _place(self, live: Live, taken: int = 0) -> bool:
        """Give a waiting sequence blocks for its prompt, if it may run now."""
        running = len(self.decoding) + taken + (self._partial is not None)
        if self._stuck or running >= self.limits.max_sequences:
            return False
        if self.limits.paged:
            need = ceil_div(live.target, self.limits.block)
        else:
            need = self.limits.blocks_for(live.request)
        # At least one token is computed, or there is nothing to sample from.
        hit = self.blocks.match(live.keys, (live.target - 1) // self.limits.block)
        if not self.blocks.admit(live, need, hit, self._keep if running else 0):
            self._stuck = True
            return False
        live.past = hit * self.limits.block
        if live.preemptions == 0:
            live.hit = live.past
        return True

    def _cut(self, live: Live, chunks: list[Chunk], most: int) -> int:
        tokens = min(live.target - live.past, most)
        if tokens > 0:
            chunks.append(Chunk(live, live.past, tokens))
        return tokens

    def _make_room(self) -> None:
        """Take the blocks that decoding needs, from the youngest sequences if there are too few."""
        need = self.decoding.blocks(1)
        while need > self.blocks.available:
            self._preempt()
            need = self.decoding.blocks(1)
        if need:
            self.blocks.take(need)

    def _preempt(self) -> None:
        """The sequence admitted last gives its blocks back and waits as the first in the queue.

        Some of these blocks are taken at once, so it is not admitted again in the same pass.
        """
        live = self._partial
        if live is not None:
            self._partial = None
        else:
            live = self.decoding.youngest()
            self.decoding.leave(live)
        self.blocks.release(live)
        live.target = live.request.prompt + live.generated
        live.past = 0
        live.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(live)
        self._stuck = False
