"""An engine without a model: a thread that sends the tokens that a test asks for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

from shardwise.errors import BadInput
from shardwise.serve.request import (
    CANCELLED,
    FAILED,
    LENGTH,
    STOP,
    Deliver,
    EngineStats,
    Generation,
    Score,
    Token,
)

Reply = Callable[[Generation], Iterator[int]]


class Sequence:
    """A generation that runs."""

    def __init__(self, generation: Generation, deliver: Deliver, tokens: Iterator[int]) -> None:
        self.generation = generation
        self.deliver = deliver
        self.tokens = tokens
        self.sent = 0

    def step(self) -> bool:
        """Send the next token, or the end; whether that was the last."""
        asked = self.generation
        token = next(self.tokens, None)
        mask = asked.mask
        if token is None or token in asked.stop_tokens or (mask is not None and mask.complete):
            self.deliver(Token(-1, finish=STOP))
            return True
        if mask is not None:
            mask.advance(token)
        self.sent += 1
        finish = LENGTH if self.sent == asked.max_tokens else ""
        cached = len(asked.prompt) // 2 if self.sent == 1 else 0
        logprob, top = None, ()
        if asked.sampling.logprobs is not None:
            logprob = -0.5
            others = range(asked.sampling.logprobs)
            top = tuple(((token + k) % 256, -0.5 - k) for k in others)
        prompt: tuple[Score, ...] = ()
        if asked.scores_prompt and self.sent == 1:
            prompt = tuple(Score(-float(i), ((token, -0.1),)) for i in range(1, len(asked.prompt)))
        self.deliver(Token(token, logprob, top, finish, cached, prompt))
        return bool(finish)


class FakeEngine:
    """Engine whose passes take `step_seconds` and give each sequence one token."""

    def __init__(self, reply: Reply, vocab: int, *, max_context: int = 4096, batch: int = 32):
        self.reply = reply
        self.vocab = vocab
        self.max_context = max_context
        self.step_seconds = 0.0
        self.healthy = True
        self.fails = False  # whether sequences end as failed
        self.seen: list[Generation] = []
        self.generated = 0
        self.cancelled = 0
        self._batch = batch
        self._sequences: dict[str, Sequence] = {}
        self._ended: set[str] = set()
        self._lock = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def submit(self, generation: Generation, deliver: Deliver) -> None:
        if len(generation.prompt) + generation.max_tokens > self.max_context:
            raise BadInput("longer than the context.")
        with self._lock:
            assert generation.id not in self._sequences
            self.seen.append(generation)
            sequence = Sequence(generation, deliver, iter(self.reply(generation)))
            self._sequences[generation.id] = sequence
            self._lock.notify()

    def cancel(self, id: str) -> None:
        with self._lock:
            self._ended.add(id)

    def stats(self) -> EngineStats:
        with self._lock:
            running = min(len(self._sequences), self._batch)
            return EngineStats(
                waiting=len(self._sequences) - running,
                running=running,
                blocks_used=running,
                blocks=self._batch,
                prompt_tokens=sum(len(asked.prompt) for asked in self.seen),
                cached_tokens=0,
                generated_tokens=self.generated,
                preemptions=0,
                passes=0,
                finished=len(self.seen) - len(self._sequences),
                healthy=self.healthy,
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join()

    @property
    def running(self) -> int:
        with self._lock:
            return len(self._sequences)

    def idle(self, seconds: float = 5.0) -> bool:
        """Whether nothing runs any more, after waiting for it."""
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            time.sleep(0.005)
        return not self.running

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._sequences and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
                batch = list(self._sequences.values())[: self._batch]
            if self.step_seconds:
                time.sleep(self.step_seconds)
            for sequence in batch:
                self._step(sequence)

    def _step(self, sequence: Sequence) -> None:
        with self._lock:
            id = sequence.generation.id
            if self.fails:
                sequence.deliver(Token(-1, finish=FAILED))
            elif id in self._ended:
                self.cancelled += 1
                sequence.deliver(Token(-1, finish=CANCELLED))
            else:
                self.generated += 1
                if not sequence.step():
                    return
            del self._sequences[id]


def random_tokens(generation: Generation) -> Iterator[int]:
    """Bytes drawn by the seed."""
    draw = random.Random(generation.sampling.seed)
    while True:
        yield draw.randrange(256)
