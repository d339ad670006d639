"""Continuous batching: chooses the work of each pass of an engine.

An engine calls `schedule` to get a pass, runs it, and calls `advance`; the simulation does the same
with a simulated clock. Requests are admitted in the order of their arrival (Orca, OSDI 2022), where
clients take turns. When KV cache blocks run out, the sequence admitted last is preempted and
recomputed later (vLLM, arXiv 2309.06180, section 4.5). Prompts may be split into chunks that share
passes with decoding sequences (Sarathi-Serve, arXiv 2403.02310).

The lengths of sequences are known without their tokens, so an engine may start a pass before it has
read the tokens of the pass before:

1. `schedule`, then the copies of `blocks.take_copies`, then start the pass with the blocks of
   `block_table`;
2. read the tokens that the pass before has sampled, and find out which sequences stopped with them;
3. `advance`, with these sequences as `stopped`. They may have ended, or been preempted, meanwhile;
4. `add` and `cancel` what clients ask for; next pass.

With drafts, whose `gained` is known only from the tokens, step 2 reads those of this pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.simulate.blocks import BlockManager
from shardwise.simulate.decoding import DecodeBatch
from shardwise.simulate.limits import Limits
from shardwise.simulate.passes import EMPTY_PASS, Chunk, Pass, PassResult
from shardwise.simulate.request import Request, SequenceState
from shardwise.simulate.turns import Turns


class Scheduler:
    """Queue of requests, running sequences and KV cache blocks of an engine.

    Args:
        limits: size of a pass, and size and management of the KV cache.
        text_keys: returns the keys of the full blocks of all tokens that are known of a sequence,
            prompt and generated. It is called when a sequence gives its blocks back, so that they
            can be shared by requests that continue its text. None to share prompts only.

    Attributes:
        waiting: the queue; with several clients, only its first request is determined.
        preempted: sequences that the last `schedule` preempted. Tokens sampled for them stay valid
            and belong to the prompt that is computed again; with `text_keys` in a later pass.
    """

    def __init__(
        self,
        limits: Limits,
        text_keys: Callable[[SequenceState], Sequence[Hashable]] | None = None,
    ) -> None:
        self.limits = limits
        self.blocks = BlockManager(limits.n_blocks, limits.block_tokens, limits.n_host_blocks)
        self.decoding = DecodeBatch(limits)
        self.waiting: deque[SequenceState] = deque()
        self.preemptions = 0
        self.preempted: list[SequenceState] = []
        self._turns: Turns | None = None  # None for requests of a single client
        self._client: str | None = None  # of the first request
        self._partial: SequenceState | None = None  # sequence with a part of its prompt computed
        self._pass = EMPTY_PASS
        self._queue_blocked = False  # the first request in the queue waits for free blocks
        self._reserved_blocks = int(limits.watermark * limits.n_blocks)
        self._shares_prefixes = limits.paged and limits.prefix_cache
        self._text_keys = text_keys if self._shares_prefixes else None

    @property
    def running(self) -> int:
        """Number of sequences that have blocks, counted between passes."""
        return len(self.decoding) + (self._partial is not None)

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs, asked between passes."""
        return bool(self.waiting) or self.running > 0

    @property
    def can_admit_arrivals(self) -> bool:
        """Whether a request that arrives now may be admitted to the next pass."""
        return not self.waiting and self.running < self.limits.max_sequences

    def add(
        self,
        request: Request,
        block_keys: Sequence[Hashable] | None = None,
        kv_ready: bool = False,
    ) -> SequenceState:
        """Append a request to the queue.

        Args:
            request: the new request.
            block_keys: a key for each full block of the prompt that may be shared with other
                requests. Blocks of equal keys must have the same tokens, also before the block.
                None for the keys of the request's prefix.
            kv_ready: whether another engine has computed the prompt and the first token.

        Raises:
            BadInput: the request is empty or too long for the KV cache.
        """
        if request.prompt < 1 or request.output < 1 + kv_ready:
            raise BadInput(
                f"request {request.id}: prompt must be at least 1 and output at least "
                f"{1 + kv_ready}, not {request.prompt} and {request.output}."
            )
        n_blocks = self.limits.blocks_for(request)
        if n_blocks > self.limits.n_blocks:
            raise BadInput(
                f"request {request.id}: prompt {request.prompt:,} and output {request.output:,} "
                f"need {n_blocks:,} blocks of {self.limits.block_tokens} tokens, the KV cache has "
                f"{self.limits.n_blocks:,}. Shorten it or enlarge the cache."
            )
        if not self._shares_prefixes or kv_ready:
            block_keys = ()
        elif block_keys is None:
            block_keys = request.prefix_keys(self.limits.block_tokens)
        sequence = SequenceState(request, block_keys, kv_ready)
        if request.client != self._client:
            self._meet_client(request.client)
        self.waiting.append(sequence)
        if self._turns is not None:
            self._turns.arrive(sequence)
        return sequence

    def schedule(self) -> Pass:
        """Choose the next pass and allocate its blocks; `EMPTY_PASS` if there are no requests."""
        chunks: list[Chunk] = []
        self.preempted = []
        if self._turns is not None and not self._queue_blocked:
            self._turns.bring_next()
        self._admit_prefilled()
        if not self.limits.chunked:
            self._admit(chunks, self.limits.max_tokens)
            if chunks:
                return self._set_pass(EMPTY_PASS, chunks)
        self._allocate_for_decoding()
        decoding = self.decoding
        n_decode = len(decoding)
        if self.limits.chunked:
            budget = self.limits.max_tokens - n_decode
            if self._partial is not None:
                budget -= self._append_chunk(self._partial, chunks, budget)
            self._admit(chunks, budget)
        decode_pass = EMPTY_PASS
        if n_decode:
            kv_tokens = decoding.mean_kv_tokens(1)
            decode_pass = Pass(decoding.members, n_decode, kv_tokens, (), 0, 0)
        return self._set_pass(decode_pass, chunks)

    def advance(
        self,
        n_passes: int = 1,
        gained: Mapping[SequenceState, int] | None = None,
        stopped: Iterable[SequenceState] = (),
    ) -> PassResult:
        """Account for the scheduled pass after it has run and tokens were sampled.

        Args:
            n_passes: number of times that it has run (see `identical_passes`).
            gained: sequence -> tokens that it gained, for sequences that gained fewer than
                `tokens_per_pass`, which then has to be the most that a pass can produce.
            stopped: sequences that have sampled their last token, in this pass or before, although
                they have generated fewer tokens than `request.output`. Those that have ended
                already are ignored.
        """
        finished_pass = self._pass
        decoding = self.decoding
        prefilled: list[SequenceState] = []
        ended: list[SequenceState] = []
        if finished_pass.n_decode:
            if n_passes > 1:
                n_blocks = decoding.blocks_needed(n_passes) - decoding.blocks_needed(1)
                self.blocks.allocate(n_blocks)
            if gained:
                self._release_surplus(gained)
            if self._turns is not None:
                self._turns.charge_decoding(decoding.members, decoding.gain(n_passes), gained or {})
            ended = decoding.advance(n_passes, gained or {})
        for chunk in finished_pass.chunks:
            sequence = chunk.sequence
            sequence.past += chunk.tokens
            if sequence.block_keys:
                self.blocks.publish(sequence)
                self._queue_blocked = False
            if sequence.past < sequence.prefill_target:
                self._partial = sequence
                continue
            if sequence is self._partial:
                self._partial = None
            prefilled.append(sequence)
            sequence.generated += 1
            if sequence.generated == sequence.request.output:
                ended.append(sequence)
            else:
                decoding.add(sequence, sequence.past)
        for sequence in stopped:
            if self._remove(sequence):
                ended.append(sequence)
        for sequence in ended:
            self._release(sequence)
        self._pass = EMPTY_PASS
        return PassResult(prefilled, ended)

    def cancel(self, sequence: SequenceState) -> None:
        """Drop a waiting or running request, if it has not ended.

        Call this only between `advance` and `schedule`; at other times, pass the sequence to the
        next `advance` as stopped.
        """
        if self._remove(sequence):
            self._release(sequence)

    def identical_passes(self) -> int:
        """Count the passes, from the scheduled one on, that decode the same sequences.

        In these passes no prompt is computed or could be admitted, no sequence ends before the last
        of them, and blocks suffice. A request that arrives or stops in the meantime ends the
        series, except that arrivals have no effect while `can_admit_arrivals` is false.
        """
        can_admit = self.running < self.limits.max_sequences and not self._queue_blocked
        if self._pass.chunks or (self.waiting and can_admit):
            return 1
        n_passes = self.decoding.passes_to_end()
        # The blocks of the scheduled pass are already allocated.
        n_available = self.blocks.available + self.decoding.blocks_needed(1)
        return self.decoding.passes_that_fit(n_passes, n_available)

    def block_table(self, sequence: SequenceState) -> list[int]:
        """Physical block ids of a sequence in the scheduled pass, in the order of its tokens."""
        n_blocks = sequence.n_blocks
        if sequence in self.decoding and self.limits.paged:
            context = self.decoding.context(sequence) + self.decoding.gain(1)
            n_blocks = ceil_div(context, self.limits.block_tokens)
        return self.blocks.block_table(sequence, n_blocks)

    def _meet_client(self, client: str) -> None:
        """Take turns from the second client on."""
        if self._client is None:
            self._client = client
        elif self._turns is None:
            self._turns = Turns(self.waiting, self._client)

    def _remove(self, sequence: SequenceState) -> bool:
        """Take a sequence out of where it runs or waits; return False if it has ended."""
        if sequence in self.decoding:
            self.decoding.remove(sequence)
        elif sequence is self._partial:
            self._partial = None
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            if self._turns is not None:
                self._turns.leave(sequence)
        else:
            return False
        return True

    def _release(self, sequence: SequenceState) -> None:
        """Release the blocks of a sequence, after sharing those whose tokens are known."""
        if self._text_keys is not None and sequence.n_blocks:
            sequence.block_keys = self._text_keys(sequence)
            self.blocks.publish(sequence)
        self.blocks.release(sequence)
        self._queue_blocked = False

    def _release_surplus(self, gained: Mapping[SequenceState, int]) -> None:
        """Release blocks that were allocated for tokens that sequences did not gain."""
        if not self.limits.paged:
            return
        block_tokens = self.limits.block_tokens
        for sequence, tokens in gained.items():
            context = self.decoding.context(sequence)
            allocated = ceil_div(context + self.decoding.gain(1), block_tokens)
            self.blocks.shrink(sequence, allocated, ceil_div(context + tokens, block_tokens))
            self._queue_blocked = False

    def _set_pass(self, decode_pass: Pass, chunks: list[Chunk]) -> Pass:
        """Add prompt chunks to a pass, and make it the scheduled one."""
        self._pass = decode_pass
        if chunks:
            prefill = 0
            pairs = 0
            for chunk in chunks:
                prefill += chunk.tokens
                pairs += chunk.pairs
            self._pass = decode_pass._replace(chunks=tuple(chunks), prefill=prefill, pairs=pairs)
        return self._pass

    def _admit_prefilled(self) -> None:
        """Admit sequences at the front of the queue whose prompts another engine has computed."""
        while self.waiting and self.waiting[0].kv_ready and self._allocate(self.waiting[0]):
            sequence = self.waiting.popleft()
            if self._turns is not None:
                self._turns.admit(sequence)
            sequence.kv_ready = False  # after a preemption, this engine has to recompute the prompt
            sequence.past = sequence.prefill_target
            self.decoding.add(sequence, sequence.past)

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        """Admit requests from the queue, and append chunks of at most `budget` tokens in all."""
        waiting = self.waiting
        whole_prompts = not self.limits.chunked
        n_admitted = 0  # `running` does not count these sequences yet
        while waiting and budget > 0 and not waiting[0].kv_ready:
            if whole_prompts and chunks and waiting[0].prefill_target > budget:
                return
            if not self._allocate(waiting[0], n_admitted):
                return
            sequence = waiting.popleft()
            if self._turns is not None:
                self._turns.admit(sequence)
            n_admitted += 1
            limit = sequence.prefill_target if whole_prompts else budget
            budget -= self._append_chunk(sequence, chunks, limit)

    def _allocate(self, sequence: SequenceState, n_admitted: int = 0) -> bool:
        """Allocate the blocks that a waiting sequence needs to start; False if it has to wait.

        Args:
            n_admitted: sequences admitted to this pass, which `running` does not count yet.
        """
        running = self.running + n_admitted
        if self._queue_blocked or running >= self.limits.max_sequences:
            return False
        if self.limits.paged:
            n_blocks = ceil_div(sequence.prefill_target, self.limits.block_tokens)
        else:
            n_blocks = self.limits.blocks_for(sequence.request)
        n_hits = 0
        if sequence.block_keys:
            # Not all tokens may come from the cache: sampling needs the logits of the last one.
            max_hits = (sequence.prefill_target - 1) // self.limits.block_tokens
            n_hits = self.blocks.match(sequence.block_keys, max_hits)
        reserve = self._reserved_blocks if running else 0
        # A sequence just preempted may find its own blocks, but its last token is not read yet.
        has_unread_token = self._text_keys is not None and self.preempted
        if has_unread_token or not self.blocks.admit(sequence, n_blocks, n_hits, reserve):
            self._queue_blocked = True
            return False
        sequence.past = n_hits * self.limits.block_tokens
        if sequence.preemptions == 0:
            sequence.hit_tokens = sequence.past
        return True

    def _append_chunk(self, sequence: SequenceState, chunks: list[Chunk], limit: int) -> int:
        """Append the next chunk of a prompt, of at most `limit` tokens; return its tokens."""
        tokens = min(sequence.prefill_target - sequence.past, limit)
        if tokens > 0:
            chunks.append(Chunk(sequence, sequence.past, tokens))
        return tokens

    def _allocate_for_decoding(self) -> None:
        """Allocate the blocks of the next decode pass; preempt sequences until there are enough."""
        n_blocks = self.decoding.blocks_needed(1)
        while n_blocks > self.blocks.available:
            self._preempt()
            n_blocks = self.decoding.blocks_needed(1)
        if n_blocks:
            self.blocks.allocate(n_blocks)

    def _preempt(self) -> None:
        """Release the blocks of the sequence admitted last, and put it at the front of the queue.

        As a rule it is not admitted again to this pass, since others get some of its blocks.
        """
        sequence = self._partial
        if sequence is not None:
            self._partial = None
        else:
            sequence = self.decoding.youngest()
            self.decoding.remove(sequence)
        self._release(sequence)
        sequence.prefill_target = sequence.request.prompt + sequence.generated
        sequence.past = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.preempted.append(sequence)
        self.waiting.appendleft(sequence)
        if self._turns is not None:
            self._turns.arrive(sequence)
