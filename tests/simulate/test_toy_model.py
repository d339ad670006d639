"""The scheduler under an engine that knows the tokens of a pass only after the next has started.

The model is a toy. What it keeps of a token, in a simulated memory, depends on all tokens before it
as keys and values do, and its next token is a hash of all that it reads back through the block
table. Whatever else is in the batch, each output is that of the model alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from shardwise.simulate import Limits, Request, Scheduler, SequenceState
from shardwise.simulate.block_keys import block_keys
from shardwise.simulate.passes import Pass

VOCAB = 30
STOP = 0
SEEDS = st.integers(0, 2**32).map(Random)


def keep(kept: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """What the model keeps of new tokens after those of which it reads `kept`."""
    new: list[int] = []
    for token in tokens:
        before = [*kept, *new][-1:]
        new.append(hash((token, *before)))
    return new


def next_token(kept: Sequence[int]) -> int:
    """The next token."""
    return hash(tuple(kept)) % VOCAB


def generate_alone(prompt: Sequence[int], output: int) -> list[int]:
    """What the model generates, at most `output` tokens, up to the first `STOP`."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + output:
        tokens.append(next_token(keep([], tokens)))
        if tokens[-1] == STOP:
            break
    return tokens[len(prompt) :]


@dataclass(eq=False)
class Job:
    """A request with its tokens."""

    prompt: list[int]
    output: int
    known: list[int] = field(default_factory=list)  # tokens that the host has read
    state: str = "runs"  # then "done" or "cancelled"

    @property
    def text(self) -> list[int]:
        return self.prompt + self.known


class ToyEngine:
    """Starts each pass before it reads the tokens of the last one; with drafts, reads at once.

    Args:
        chance: None or the source of the lengths of accepted drafts.
    """

    def __init__(self, limits: Limits, chance: Random, share_outputs: bool) -> None:
        keys = self.text_keys if share_outputs else None
        self.scheduler = Scheduler(limits, keys)
        self.size = limits.block_tokens
        self.memory: dict[tuple[int, int], int] = {}
        self.host: dict[int, list[int]] = {}
        self.shares_outputs = share_outputs and limits.paged and limits.prefix_cache
        self.n_device = limits.n_blocks
        self.n_host = limits.n_host_blocks
        self.jobs: dict[SequenceState, Job] = {}
        self.sampled: dict[
            SequenceState, int
        ] = {}  # the last token of each sequence, on the device
        self.unread: list[tuple[SequenceState, list[int]]] = []
        self.chance = chance
        self.ended: set[SequenceState] = set()
        self.tables: dict[SequenceState, list[int]] = {}  # of the sequences that decoded last
        self.drafts = limits.tokens_per_pass > 1

    def text_keys(self, sequence: SequenceState) -> list[bytes]:
        return block_keys(self.jobs[sequence].text, self.size)

    def add(self, job: Job, client: str) -> SequenceState:
        request = Request(len(self.jobs), 0.0, len(job.prompt), job.output, client=client)
        sequence = self.scheduler.add(request, block_keys(job.prompt, self.size))
        self.jobs[sequence] = job
        return sequence

    def cancel(self, sequence: SequenceState) -> None:
        self.scheduler.cancel(sequence)
        if self.jobs[sequence].state == "runs":
            self.jobs[sequence].state = "cancelled"
        check_blocks(self.scheduler, self.jobs)
        assert self.scheduler.blocks.used == count_used(self.scheduler, self.jobs)

    def step(self) -> None:
        scheduler = self.scheduler
        now = scheduler.schedule()
        check_blocks(scheduler, self.jobs)
        self.check_preempted(now)
        started = self.run(now)
        if self.drafts:
            stopped = self.read(started)
            gained = {
                sequence: len(tokens) for sequence, tokens in started if sequence in now.decode
            }
            result = scheduler.advance(gained=gained, stopped=stopped)
        else:
            stopped = self.read(self.unread)
            self.unread = started
            result = scheduler.advance(stopped=stopped)
        assert len(set(result.ended)) == len(result.ended)
        assert not self.ended.intersection(result.ended)
        self.ended.update(result.ended)
        check_blocks(scheduler, self.jobs)
        assert scheduler.blocks.used == count_used(scheduler, self.jobs)

    def check_preempted(self, now: Pass) -> None:
        runs = set(now.decode) | {chunk.sequence for chunk in now.chunks}
        for sequence in self.scheduler.preempted:
            assert sequence not in runs or not self.shares_outputs
        event(f"preempts: {bool(self.scheduler.preempted)}")

    def read(self, unread: list[tuple[SequenceState, list[int]]]) -> list[SequenceState]:
        """Deliver tokens; return the sequences that stop with them."""
        stopped = []
        for sequence, tokens in unread:
            job = self.jobs[sequence]
            for token in tokens:
                if job.state != "runs":
                    break  # sampled after the end
                job.known.append(token)
                if token == STOP or len(job.known) == job.output:
                    job.state = "done"
            if job.state == "done" and job.known[-1] == STOP:
                stopped.append(sequence)
        return stopped

    def run(self, now: Pass) -> list[tuple[SequenceState, list[int]]]:
        """Run a pass on the device; return the tokens that it samples."""
        inputs: list[tuple[SequenceState, int, list[int]]] = []
        for sequence in now.decode:
            past = self.scheduler.decoding.context(sequence)
            inputs.append((sequence, past, [self.sampled[sequence]]))
        for sequence, past, tokens in now.chunks:
            text = self.jobs[sequence].text
            assert past + tokens <= len(text)  # the host knows what it recomputes
            inputs.append((sequence, past, text[past : past + tokens]))
        self.copy()
        self.check_tables(now)
        places = {sequence: self.places(sequence) for sequence, _, _ in inputs}
        read = [[self.memory[place] for place in places[s][:past]] for s, past, _ in inputs]
        results = []
        for (sequence, past, tokens), before in zip(inputs, read, strict=True):
            is_chunk = sequence not in now.decode
            kept = before + keep(before, tokens)
            sampled = [next_token(kept)]
            if not is_chunk and self.drafts:
                # Of the drafts, some are accepted; those rejected are written too.
                accepted = self.chance.randint(0, self.scheduler.limits.max_gain - 1)
                while len(sampled) <= accepted:
                    kept += keep(kept, sampled[-1:])
                    sampled.append(next_token(kept))
                kept += [-1] * (self.scheduler.limits.max_gain - len(sampled))
            for place, value in zip(places[sequence][past:], kept[past:], strict=False):
                self.memory[place] = value
            if is_chunk and len(kept) < sequence.prefill_target:
                continue
            self.sampled[sequence] = sampled[-1]
            results.append((sequence, sampled))
        return results

    def check_tables(self, now: Pass) -> None:
        """While a sequence decodes, its tokens stay where they are."""
        tables = {sequence: self.scheduler.block_table(sequence) for sequence in now.decode}
        for sequence in tables.keys() & self.tables.keys():
            n_full = self.scheduler.decoding.context(sequence) // self.size
            assert tables[sequence][:n_full] == self.tables[sequence][:n_full]
        self.tables = tables

    def copy(self) -> None:
        """Run the copies that precede a pass, each list in any order."""
        copies = self.scheduler.blocks.take_copies()
        for moves, n_targets in ((copies.to_host, self.n_host), (copies.to_device, self.n_device)):
            targets = [target for _, target in moves]
            assert len(set(targets)) == len(targets)
            assert all(0 <= target < n_targets for target in targets)
            self.chance.shuffle(moves)
        for block, host_block in copies.to_host:
            self.host[host_block] = [self.memory[block, at] for at in range(self.size)]
        for host_block, block in copies.to_device:
            for at, value in enumerate(self.host[host_block]):
                self.memory[block, at] = value
        event(f"copies to host: {bool(copies.to_host)}, back: {bool(copies.to_device)}")

    def places(self, sequence: SequenceState) -> list[tuple[int, int]]:
        table = self.scheduler.block_table(sequence)
        return [(block, offset) for block in table for offset in range(self.size)]


def check_blocks(scheduler: Scheduler, jobs: Iterable[SequenceState]) -> None:
    """No block is lost, or has two owners."""
    blocks = scheduler.blocks
    assert blocks.used + blocks.cached + blocks.free == blocks.n_blocks
    assert min(blocks.used, blocks.cached, blocks.free) >= 0
    users = Counter(block for sequence in jobs for block in sequence.cached_blocks)
    assert all(block.ref_count == n_users for block, n_users in users.items())
    unused = blocks._unused.values()
    assert not users.keys() & set(unused)
    owned = [block.physical_id for block in [*users, *unused] if block.physical_id is not None]
    for sequence in jobs:
        owned += sequence.private_block_ids
    assert len(set(owned)) == len(owned)
    assert all(0 <= block < blocks.n_blocks for block in owned)


def count_used(scheduler: Scheduler, jobs: Iterable[SequenceState]) -> int:
    """Blocks that sequences use between passes, counted one by one."""
    n_private = 0
    shared = set()
    for sequence in jobs:
        n_blocks = sequence.n_blocks
        if sequence in scheduler.decoding:
            context = scheduler.decoding.context(sequence)
            n_blocks = max(n_blocks, -(-context // scheduler.limits.block_tokens))
        n_private += n_blocks - len(sequence.cached_blocks)
        shared.update(sequence.cached_blocks)
    return n_private + len(shared)


@st.composite
def small_limits(draw: st.DrawFn, gains: Sequence[float] = (1.0,)) -> Limits:
    """Engines whose blocks run out; any request of `prompts` fits alone."""
    block = draw(st.sampled_from([1, 2, 4]))
    sequences = draw(st.integers(2, 5))
    return Limits(
        n_blocks=-(-28 // block) + draw(st.integers(0, 40 // block)),
        block_tokens=block,
        max_sequences=sequences,
        max_tokens=sequences + draw(st.integers(0, 20)),
        chunked=draw(st.sampled_from([True, True, False])),
        paged=draw(st.sampled_from([True, True, True, False])),
        prefix_cache=draw(st.sampled_from([True, True, False])),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        tokens_per_pass=draw(st.sampled_from(list(gains))),
    )


def serve(engine: ToyEngine, chance: Random, n_jobs: int, cancels: bool) -> None:
    """Serve requests that come over time; some continue the text of one that has ended."""
    arrivals = 0
    while arrivals < n_jobs or engine.scheduler.has_work:
        while arrivals < n_jobs and chance.random() < 0.5:
            arrivals += 1
            engine.add(draw_job(engine, chance), chance.choice("aab"))
        if cancels and engine.jobs and chance.random() < 0.1:
            engine.cancel(chance.choice(list(engine.jobs)))
        engine.step()
    engine.read(engine.unread)


def draw_job(engine: ToyEngine, chance: Random) -> Job:
    """A new prompt, one with parts in common with others, or one that continues an earlier chat."""
    start = [1 + chance.randrange(2)] * 4 + [3] * chance.randint(0, 8)
    chats = [job.text for job in engine.jobs.values() if job.state == "done"]
    if chats and chance.random() < 0.5:
        start = chance.choice(chats)[:12]
    prompt = start + [chance.randrange(1, VOCAB) for _ in range(chance.choice([0, 0, 1, 3, 5]))]
    return Job(prompt, chance.randint(1, 10))


@settings(max_examples=120)
@given(small_limits(), SEEDS, st.booleans(), st.booleans())
def test_outputs_are_those_of_the_model_alone(
    limits: Limits, chance: Random, share_outputs: bool, cancels: bool
) -> None:
    engine = ToyEngine(limits, chance, share_outputs)
    serve(engine, chance, 12, cancels)
    check_outputs(engine)


@settings(max_examples=60)
@given(small_limits((2.0, 3.0)), SEEDS, st.booleans())
def test_outputs_with_drafts_are_those_of_the_model_alone(
    limits: Limits, chance: Random, share_outputs: bool
) -> None:
    engine = ToyEngine(limits, chance, share_outputs)
    serve(engine, chance, 12, cancels=True)
    check_outputs(engine)


@settings(max_examples=60)
@given(small_limits(), st.sampled_from([1, 4, 12, 60]), SEEDS)
def test_outputs_with_host_memory_are_those_of_the_model_alone(
    limits: Limits, n_host_blocks: int, chance: Random
) -> None:
    limits = replace(
        limits,
        n_blocks=-(-30 // limits.block_tokens),
        n_host_blocks=n_host_blocks,
        prefix_cache=True,
        paged=True,
    )
    engine = ToyEngine(limits, chance, share_outputs=True)
    serve(engine, chance, 16, cancels=True)
    check_outputs(engine)


def check_outputs(engine: ToyEngine) -> None:
    assert engine.scheduler.blocks.used == 0
    for job in engine.jobs.values():
        alone = generate_alone(job.prompt, job.output)
        if job.state == "cancelled":
            assert job.known == alone[: len(job.known)]
        else:
            assert (job.state, job.known) == ("done", alone)
