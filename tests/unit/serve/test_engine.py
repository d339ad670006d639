"""The engine's outputs are those of a plain loop, whatever else it serves and however it runs."""

from __future__ import annotations

import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.errors import BadInput
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.runtime.serving.forward import PagedForward
from shardwise.serve.live import Live
from shardwise.serve.programs import Programs
from shardwise.serve.request import CANCELLED, FAILED, LENGTH, STOP, Generation, Sampling
from tests.unit.serve.engines import (
    BLOCK_TOKENS,
    BLOCKS,
    CONTEXT,
    HOST_BLOCKS,
    MODEL,
    Greedy,
    Output,
    generate,
    programs,
    random_weights,
    running,
)

GREEDY = Sampling(temperature=0)
NOISY = Sampling(temperature=1.5, top_k=40, top_p=0.95)


@pytest.fixture(scope="module")
def compiled() -> Programs:
    return programs()


@pytest.fixture(scope="module")
def plain() -> Greedy:
    return Greedy()


def prompts(n: int, seed: int = 0) -> list[tuple[int, ...]]:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 40, n)
    return [tuple(random.integers(0, MODEL.vocab, length).tolist()) for length in lengths]


def requests(n: int, sampling: Sampling = GREEDY, max_tokens: int = 12) -> list[Generation]:
    return [
        Generation(id=str(i), prompt=prompt, max_tokens=max_tokens, sampling=sampling)
        for i, prompt in enumerate(prompts(n))
    ]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_sequences": 1},
        {"max_tokens": 5},
        {"chunked": False},
        {"prefix_cache": False},
        {"n_blocks": 17, "watermark": 0.0},
        {"n_blocks": 17, "watermark": 0.0, "max_tokens": 5},
    ],
    ids=str,
)
def test_outputs_are_those_of_a_plain_loop(
    compiled: Programs, plain: Greedy, limits: dict[str, object]
) -> None:
    with running(compiled, **limits) as engine:
        outputs = generate(engine, requests(7))
        stats = engine.stats()
    for output, prompt in zip(outputs, prompts(7), strict=True):
        assert output.ids == plain.continuation(prompt, 12)
        assert output.finish == LENGTH
    assert stats.running == stats.waiting == stats.blocks_used == 0
    assert stats.generated_tokens == 7 * 12
    assert (stats.preemptions > 0) == ("n_blocks" in limits)


def test_a_prompt_that_was_seen_is_read_from_the_cache(compiled: Programs, plain: Greedy) -> None:
    prompt = tuple(range(30))
    first = Generation(id="first", prompt=prompt, max_tokens=4, sampling=GREEDY)
    longer = replace(first, id="longer", prompt=(*prompt, 5, 6))
    with running(compiled) as engine:
        (cold,) = generate(engine, [first])
        warm, extended = generate(engine, [replace(first, id="again"), longer])
    assert cold.tokens[0].cached == 0
    assert warm.tokens[0].cached == 28  # whole blocks, and not the last token
    assert extended.tokens[0].cached == 28
    assert warm.ids == cold.ids == plain.continuation(prompt, 4)
    assert extended.ids == plain.continuation(longer.prompt, 4)


def test_a_conversation_reads_its_earlier_answers_from_the_cache(
    compiled: Programs, plain: Greedy
) -> None:
    first = Generation(id="first", prompt=tuple(range(20)), max_tokens=9, sampling=GREEDY)
    with running(compiled) as engine:
        (answer,) = generate(engine, [first])
        second = replace(first, id="second", prompt=(*first.prompt, *answer.ids, 7, 8, 9))
        (later,) = generate(engine, [second])
    assert later.tokens[0].cached == 28  # of 20 + 9, whose last token was never written
    assert later.ids == plain.continuation(second.prompt, 9)


@pytest.mark.parametrize("limits", [{}, {"n_blocks": 17, "watermark": 0.0}], ids=str)
def test_prompts_are_scored_among_others(
    compiled: Programs, plain: Greedy, limits: dict[str, object]
) -> None:
    sampling = replace(GREEDY, logprobs=2)
    whole = requests(7)
    scored = []
    for request in whole:
        again = replace(request, id=f"scored {request.id}", sampling=sampling, scores_prompt=True)
        scored.append(again)
    with running(compiled, **limits) as engine:
        generate(engine, whole[:3])  # whose blocks are not read
        outputs = generate(engine, [*scored, *whole])
    for output, request in zip(outputs, scored, strict=False):
        assert output.ids == plain.continuation(request.prompt, 12)
        logprob_TV = np.asarray(jax.nn.log_softmax(plain.logits(request.prompt), axis=-1))
        found = output.tokens[0].prompt
        assert len(found) == len(request.prompt) - 1
        for position, score in enumerate(found):
            expected_V = logprob_TV[position]
            expected = expected_V[request.prompt[position + 1]]
            assert score.logprob == pytest.approx(expected, abs=1e-4)
            assert [token for token, _ in score.top] == np.argsort(-expected_V)[:2].tolist()
            assert score.top[0][1] == pytest.approx(expected_V.max(), abs=1e-4)


def test_evicted_blocks_come_back_from_host_memory(compiled: Programs, plain: Greedy) -> None:
    first = Generation(id="first", prompt=tuple(range(30)), max_tokens=4, sampling=GREEDY)
    others = [replace(request, id=f"other {request.id}") for request in requests(9)]
    cached = {}
    for n_host_blocks in (0, HOST_BLOCKS):
        with running(compiled, n_blocks=17, n_host_blocks=n_host_blocks) as engine:
            generate(engine, [first])
            generate(engine, others)
            (again,) = generate(engine, [replace(first, id="again")])
        assert again.ids == plain.continuation(first.prompt, 4)
        cached[n_host_blocks] = again.tokens[0].cached
    assert cached == {0: 0, HOST_BLOCKS: 28}


@pytest.mark.parametrize("weights", ["fp32", pytest.param("int8", marks=pytest.mark.oracle)])
def test_arrays_by_layer_and_weights_by_output(
    compiled: Programs, plain: Greedy, weights: str
) -> None:
    by_layer = programs(by_layer=True, weights=weights)
    by_layer.compile()
    with running(by_layer) as engine:
        outputs = generate(engine, requests(5))
    if weights == "fp32":
        texts = [plain.continuation(prompt, 12) for prompt in prompts(5)]
    else:
        with running(programs(weights=weights)) as engine:
            texts = [output.ids for output in generate(engine, requests(5))]
    assert [output.ids for output in outputs] == texts


def test_arrays_by_layer_of_one_gpu(monkeypatch: pytest.MonkeyPatch, plain: Greedy) -> None:
    """Stacks are freed, and few rows are padded; the devices are those of a CPU all the same."""
    monkeypatch.setattr(RoleMesh, "platform", "gpu")
    state = programs().forward.engine
    weights = jax.tree.map(jnp.copy, random_weights())
    (stack,) = weights["layers"]
    by_layer = Programs(
        forward=PagedForward(engine=state, n_blocks=64, block_tokens=4, by_layer=True),
        weights=weights,
        max_sequences=4,
        max_tokens=16,
        max_context=64,
    )
    assert all(array.is_deleted() for array in stack.values())
    by_layer.compile()
    with running(by_layer) as engine:
        outputs = [generate(engine, requests(n))[-1] for n in (1, 5)]
    assert [o.ids for o in outputs] == [plain.continuation(prompts(n)[-1], 12) for n in (1, 5)]


def test_a_stop_token_ends_the_output_and_is_not_sent(compiled: Programs, plain: Greedy) -> None:
    prompt = prompts(1)[0]
    whole = plain.continuation(prompt, 12)
    stop = whole[5]
    request = Generation(
        id="stop", prompt=prompt, max_tokens=12, sampling=GREEDY, stop_tokens=frozenset([stop])
    )
    with running(compiled) as engine:
        (output,) = generate(engine, [request])
    assert output.ids == whole[: whole.index(stop)]
    assert output.finish == STOP


def test_seeded_draws_do_not_depend_on_the_batch(compiled: Programs) -> None:
    sampling = replace(NOISY, seed=7)
    request = Generation(id="seeded", prompt=(1, 2, 3), max_tokens=10, sampling=sampling)
    with running(compiled) as engine:
        (alone,) = generate(engine, [request])
        together = generate(engine, [*requests(5, NOISY), request])[-1]
        (other,) = generate(engine, [replace(request, sampling=replace(sampling, seed=8))])
    assert alone.ids == together.ids
    assert other.ids != alone.ids


def test_bias_penalties_and_log_probabilities(compiled: Programs, plain: Greedy) -> None:
    prompt = prompts(1)[0]
    sampling = Sampling(
        temperature=0,
        logit_bias={3: -100.0, 5: 0.5},
        presence_penalty=0.7,
        frequency_penalty=0.4,
        repetition_penalty=1.3,
        logprobs=2,
    )
    request = Generation(id="all", prompt=prompt, max_tokens=8, sampling=sampling)
    with running(compiled) as engine:
        (output,) = generate(engine, [request])
    tokens = list(prompt)
    for token in output.tokens:
        logits = plain.logits(tokens)[-1].astype(np.float64)
        for seen in set(tokens):
            logits[seen] *= 1.3 if logits[seen] < 0 else 1 / 1.3
        for seen in set(tokens[len(prompt) :]):
            logits[seen] -= 0.7 + 0.4 * tokens[len(prompt) :].count(seen)
        logits[3] -= 100
        logits[5] += 0.5
        logprobs = logits - np.log(np.exp(logits).sum())
        assert token.id == logits.argmax()
        assert token.logprob == pytest.approx(logprobs[token.id], abs=1e-4)
        assert [top for top, _ in token.top] == np.argsort(-logits)[:2].tolist()
        tokens.append(token.id)


class Even:
    """A grammar of at most three even tokens."""

    def __init__(self) -> None:
        self.n = 0

    def allowed(self) -> bytes:
        bits = np.zeros(128, bool)
        bits[: MODEL.vocab : 2] = True
        return np.packbits(bits, bitorder="little").tobytes()

    def advance(self, token: int) -> None:
        assert token % 2 == 0
        self.n += 1

    @property
    def complete(self) -> bool:
        return self.n == 3


def test_a_grammar_restricts_its_request_alone(compiled: Programs, plain: Greedy) -> None:
    free, bound = requests(2)
    with running(compiled) as engine:
        outputs = generate(engine, [free, replace(bound, mask=Even())])
    assert outputs[0].ids == plain.continuation(free.prompt, 12)
    assert len(outputs[1].ids) == 3
    assert outputs[1].finish == STOP
    logits = plain.logits(bound.prompt)[-1]
    assert outputs[1].ids[0] == 2 * logits[::2].argmax()


def test_requests_that_wait_cost_a_pass_nothing(
    compiled: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    needs_tokens = Live.needs_tokens.fget

    def counted(live: Live) -> bool:
        asked.append(live)
        return bool(needs_tokens(live))

    monkeypatch.setattr(Live, "needs_tokens", property(counted))
    with running(compiled) as engine:
        outputs = generate(engine, [*requests(40), replace(requests(1)[0], id="e", mask=Even())])
    assert len(asked) <= 2 * sum(len(output.tokens) for output in outputs)


def test_cancelled_requests_free_their_blocks(compiled: Programs, plain: Greedy) -> None:
    random = np.random.default_rng(3)
    with running(compiled, n_blocks=24) as engine:
        outputs = []
        for i, request in enumerate(requests(40)):
            output = Output()
            started = threading.Event()
            outputs.append((request, output))

            def deliver(token: object, output: Output = output, started: object = started) -> None:
                output.deliver(token)  # type: ignore[arg-type]
                started.set()  # type: ignore[attr-defined]

            engine.submit(request, deliver)
            if i % 3 == 0:
                if random.random() < 0.5:
                    started.wait(5)
                engine.cancel(request.id)
        for request, output in outputs:
            output.wait()
            whole = plain.continuation(request.prompt, 12)
            assert output.ids == whole[: len(output.ids)]
            assert output.finish in (LENGTH, CANCELLED)
        stats = engine.stats()
        assert {output.finish for _, output in outputs} == {LENGTH, CANCELLED}
    assert stats.blocks_used == stats.running == stats.waiting == 0
    assert stats.finished == 40


def test_too_long_a_request_is_refused(compiled: Programs) -> None:
    request = Generation(id="long", prompt=(1,) * CONTEXT, max_tokens=1)
    with running(compiled) as engine, pytest.raises(BadInput, match="serves up to 64"):
        engine.submit(request, Output().deliver)
    assert BLOCKS * BLOCK_TOKENS > CONTEXT


def test_a_failure_of_the_device_ends_all_requests(
    compiled: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("out of memory")

    with running(compiled) as engine:
        monkeypatch.setattr(compiled, "logits", fail)
        outputs = generate(engine, requests(3))
        late = generate(engine, [replace(requests(1)[0], id="late")])
        assert not engine.stats().healthy
    assert {output.finish for output in outputs + late} == {FAILED}
