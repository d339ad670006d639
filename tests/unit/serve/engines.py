"""A small engine on one CPU device, and a plain greedy loop to hold it against."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.estimate.serving.compiled_shapes import CompiledShapes
from shardwise.models import ModelConfig
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.weights.descriptions import Tree, describe
from shardwise.serve.drafts import Drafter
from shardwise.serve.engine import InferenceEngine
from shardwise.serve.programs import Programs
from shardwise.serve.request import Generation, Token
from shardwise.simulate.limits import Limits
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve
from tests.unit.runtime.drawn import drawn_weights
from tests.unit.runtime.logits import logits

MODEL = ModelConfig.dense(n_layers=2, d_model=32, d_ff=64, n_heads=4, n_kv_heads=2, vocab=97)
CONTEXT, BLOCKS, BLOCK_TOKENS, SEQUENCES, TOKENS = 64, 64, 4, 4, 16
HOST_BLOCKS = 64
PATIENCE_S = 60
FP32 = {"weights": "fp32", "kv": "fp32", "compute": "fp32"}


class OneBatchSize(CompiledShapes):
    def batch_sizes(self) -> list[int]:
        return [self.max_sequences]


class OneSize(Programs):
    """Programs of one number of rows, which are compiled in less time than those of several."""

    @property
    def shapes(self) -> CompiledShapes:
        return OneBatchSize(max_sequences=self.max_sequences, max_tokens=self.max_tokens)


@functools.cache
def random_weights(seed: int = 1, model: ModelConfig = MODEL) -> Tree:
    """Weights whose logits differ enough that rounding does not change the highest."""
    weights: Tree = jax.device_put(drawn_weights(describe(model), seed))
    return weights


def one_device() -> Table:
    return Table(rules={}, mesh=role_mesh(Mesh().sizes, np.array(jax.devices()[:1])))


def programs(
    kind: type[Programs] = Programs,
    seed: int = 1,
    *,
    by_layer: bool = False,
    weights: str = "fp32",
    **settings: object,
) -> Programs:
    """Programs of the model with random weights."""
    state = EngineState(
        config=MODEL,
        job=Serve(context=CONTEXT, **(FP32 | {"weights": weights})),
        layout=ServeLayout(mesh=Mesh()),
        table=one_device(),
        batch=1,
    )
    sizes = {"max_sequences": SEQUENCES, "max_tokens": TOKENS, "max_context": CONTEXT}
    return kind(
        forward=PagedForward(
            engine=state, n_blocks=BLOCKS, block_tokens=BLOCK_TOKENS, by_layer=by_layer
        ),
        weights=jax.jit(state.quantize_weights)(random_weights(seed)),
        n_host_blocks=HOST_BLOCKS,
        **(sizes | settings),  # type: ignore[arg-type]
    )


@contextmanager
def running(
    compiled: Programs, drafter: Drafter | None = None, **limits: object
) -> Iterator[InferenceEngine]:
    """An engine with these limits, closed at the end."""
    sizes = {
        "n_blocks": BLOCKS,
        "block_tokens": BLOCK_TOKENS,
        "max_sequences": SEQUENCES,
        "max_tokens": TOKENS,
    }
    limits_of_engine = Limits(**(sizes | limits))  # type: ignore[arg-type]
    engine = InferenceEngine(compiled, limits_of_engine, drafter)
    try:
        yield engine
    finally:
        engine.close()


class Output:
    """What an engine delivered for one request."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self._ended = threading.Event()

    def deliver(self, token: Token) -> None:
        assert not self._ended.is_set(), "a token after the end"
        self.tokens.append(token)
        if token.finish:
            self._ended.set()

    def wait(self) -> Output:
        assert self._ended.wait(PATIENCE_S), "the request did not end"
        return self

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens if token.id >= 0]

    @property
    def finish(self) -> str:
        return self.tokens[-1].finish


def generate(engine: InferenceEngine, generations: Iterable[Generation]) -> list[Output]:
    """The outputs of requests that are submitted at once."""
    outputs = []
    for generation in generations:
        outputs.append(Output())
        engine.submit(generation, outputs[-1].deliver)
    return [output.wait() for output in outputs]


class Greedy:
    """Continuations by forward passes over whole sequences."""

    def __init__(
        self, config: ModelConfig = MODEL, weights: Tree | None = None, context: int = CONTEXT
    ) -> None:
        self._logits = jax.jit(logits(config, one_device(), context, jnp.float32))
        self._weights = jax.device_put(weights or random_weights(model=config))
        self._context = context

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [T,V] of a sequence."""
        padded = np.zeros((1, self._context), np.int32)
        padded[0, : len(tokens)] = tokens
        return np.asarray(self._logits(self._weights, padded))[0, : len(tokens)]

    def continuation(self, prompt: Sequence[int], n: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(n):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]
