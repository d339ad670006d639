"""The side of `bench/serve.py` that is shardwise: the engine that `shardwise serve` starts."""

from __future__ import annotations

import itertools
import queue
import time
from pathlib import Path

from serve_worker import Generated, Served

import shardwise as sw
from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.launch import launched
from shardwise.serve.model_files import find_model
from shardwise.serve.request import Engine, Generation, Sampling, Token

LONGEST, MOST = 512, 16  # tokens of a sequence, and sequences


class Side:
    """An engine that runs until the process ends."""

    version = f"shardwise {sw.__version__}"

    def __init__(self, dtype: str, model: Path, folder: Path) -> None:
        options = EngineOptions(context=LONGEST, sequences=MOST, weights=dtype)
        self._running = launched(find_model(str(model)), options)
        self._use(self._running.__enter__())

    @classmethod
    def of(cls, engine: Engine) -> Side:
        """A side whose engine runs already."""
        side = cls.__new__(cls)
        side._use(engine)
        return side

    def _use(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = itertools.count()

    def generate(self, prompts: list[list[int]], output: int) -> Generated:
        """See `serve_worker.Side`."""
        start = time.perf_counter()
        tokens, times = self._outputs(prompts, output, 0.0)
        begin, end = max(each[0] for each in times), min(each[-1] for each in times)
        decoded = sum(begin < at <= end for each in times for at in each)
        return Generated(tokens, begin - start, decoded, end - begin)

    def serve(self, prompts: list[list[int]], output: int, every_s: float) -> Served:
        """See `serve_worker.Side`."""
        start = time.perf_counter()
        _, times = self._outputs(prompts, output, every_s)
        ttft_s = [each[0] - start - i * every_s for i, each in enumerate(times)]
        return Served(ttft_s, max(each[-1] for each in times) - start)

    def _outputs(
        self, prompts: list[list[int]], output: int, every_s: float
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens of all outputs, and when each came."""
        arrived: queue.SimpleQueue[tuple[int, Token, float]] = queue.SimpleQueue()
        start = time.perf_counter()

        def submit(i: int, prompt: list[int]) -> None:
            generation = Generation(
                id=str(next(self._ids)),
                prompt=tuple(prompt),
                max_tokens=output,
                sampling=Sampling(temperature=0.0),
            )
            self._engine.submit(
                generation, lambda token: arrived.put((i, token, time.perf_counter()))
            )

        for i, prompt in enumerate(prompts):
            time.sleep(max(0.0, start + i * every_s - time.perf_counter()))
            submit(i, prompt)
        tokens: list[list[int]] = [[] for _ in prompts]
        times: list[list[float]] = [[] for _ in prompts]
        n_running = len(prompts)
        while n_running:
            i, token, at = arrived.get()
            if token.id >= 0:
                tokens[i].append(token.id)
                times[i].append(at)
            n_running -= bool(token.finish)
        return tokens, times
