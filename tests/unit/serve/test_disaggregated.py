"""Prompts on one engine and outputs on another are those of a plain loop."""

from __future__ import annotations

import copy
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.errors import BadInput
from shardwise.serve import remote_prefill
from shardwise.serve.disaggregated import DisaggregatedEngine
from shardwise.serve.drafts import NgramDrafter
from shardwise.serve.http.app import App
from shardwise.serve.http.options import ServerOptions
from shardwise.serve.http.run import Server
from shardwise.serve.phases import DecodeEngine, PrefillEngine, Prefiller
from shardwise.serve.programs import Programs
from shardwise.serve.remote_prefill import PrefillServer, RemotePrefill
from shardwise.serve.request import (
    CANCELLED,
    FAILED,
    LENGTH,
    STOP,
    UNREACHABLE,
    EngineStats,
    Generation,
)
from shardwise.simulate.limits import Limits
from tests.unit.serve.engines import (
    BLOCK_TOKENS,
    BLOCKS,
    CONTEXT,
    SEQUENCES,
    TOKENS,
    Greedy,
    Output,
    generate,
    programs,
)
from tests.unit.serve.http.serving import texts
from tests.unit.serve.test_engine import GREEDY, NOISY, Even, prompts, requests

LIMITS = {
    "n_blocks": BLOCKS,
    "block_tokens": BLOCK_TOKENS,
    "max_sequences": SEQUENCES,
    "max_tokens": TOKENS,
}


@pytest.fixture(scope="module")
def prefill() -> Programs:
    return programs()


@pytest.fixture(scope="module")
def decode(prefill: Programs) -> Programs:
    """The same programs with a cache of their own."""
    twin = copy.copy(prefill)
    twin._cache = jax.tree.map(jnp.copy, prefill._cache)
    twin._last_token_S = jnp.copy(prefill._last_token_S)
    return twin


@pytest.fixture(scope="module")
def plain() -> Greedy:
    return Greedy()


@contextmanager
def disaggregated(
    prefill: Programs | RemotePrefill,
    decode: Programs,
    drafter: NgramDrafter | None = None,
    **limits: object,
) -> Iterator[DisaggregatedEngine]:
    """Two engines, of which the second has these limits; nothing is left in them at the end.

    A failed engine has been stopped within a pass, and keeps its blocks.
    """
    first: Prefiller
    if isinstance(prefill, RemotePrefill):
        first = prefill
    else:
        first = PrefillEngine(prefill, Limits(**LIMITS))  # type: ignore[arg-type]
    second = DecodeEngine(decode, Limits(**(LIMITS | limits)), drafter)  # type: ignore[arg-type]
    engine = DisaggregatedEngine([first], [second])
    try:
        yield engine
        stats = engine.stats()
        if stats.healthy:
            assert stats.blocks_used == stats.running == stats.waiting == 0
    finally:
        engine.close()


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"n_blocks": 17, "watermark": 0.0},
        pytest.param({"max_sequences": 1}, marks=pytest.mark.oracle),
        pytest.param({"n_blocks": 17, "prefix_cache": False}, marks=pytest.mark.oracle),
    ],
    ids=str,
)
def test_outputs_are_those_of_a_plain_loop(
    prefill: Programs, decode: Programs, plain: Greedy, limits: dict[str, object]
) -> None:
    with disaggregated(prefill, decode, **limits) as engine:
        outputs = generate(engine, requests(7))
        stats = engine.stats()
    for output, prompt in zip(outputs, prompts(7), strict=True):
        assert output.ids == plain.continuation(prompt, 12)
        assert output.finish == LENGTH
    assert stats.generated_tokens == 7 * 12
    assert stats.prompt_tokens == sum(map(len, prompts(7)))
    assert stats.finished == 7
    assert (stats.preemptions > 0) == ("n_blocks" in limits)


@pytest.mark.oracle
def test_drafts_and_another_layout(prefill: Programs, plain: Greedy) -> None:
    other = programs(by_layer=True, max_drafted=2)
    with disaggregated(prefill, other, NgramDrafter(), tokens_per_pass=3) as engine:
        outputs = generate(engine, requests(5))
        stats = engine.stats()
    assert [output.ids for output in outputs] == [plain.continuation(p, 12) for p in prompts(5)]
    assert stats.drafted_tokens > 0


def test_the_prefix_cache_of_prefill(prefill: Programs, decode: Programs, plain: Greedy) -> None:
    prompt = tuple(range(30))
    first = Generation(id="first", prompt=prompt, max_tokens=4, sampling=GREEDY)
    with disaggregated(prefill, decode) as engine:
        (cold,) = generate(engine, [first])
        (warm,) = generate(engine, [replace(first, id="again")])
        stats = engine.stats()
    assert (cold.tokens[0].cached, warm.tokens[0].cached) == (0, 28)
    assert warm.ids == cold.ids == plain.continuation(prompt, 4)
    assert stats.cached_tokens == 28


def test_ends_with_the_first_token(prefill: Programs, decode: Programs, plain: Greedy) -> None:
    prompt = prompts(1)[0]
    first = plain.continuation(prompt, 1)
    one = Generation(id="one", prompt=prompt, max_tokens=1, sampling=GREEDY)
    stop = replace(one, id="stop", max_tokens=5, stop_tokens=frozenset(first))
    with disaggregated(prefill, decode) as engine:
        outputs = generate(engine, [one, stop])
        assert engine.stats().finished == 2
    assert [output.ids for output in outputs] == [first, []]
    assert [output.finish for output in outputs] == [LENGTH, STOP]


@pytest.mark.oracle
def test_draws_grammars_and_log_probabilities(prefill: Programs, decode: Programs) -> None:
    seeded = replace(NOISY, seed=7, frequency_penalty=0.4, repetition_penalty=1.2, logprobs=2)
    request = Generation(id="seeded", prompt=(1, 2, 3), max_tokens=10, sampling=seeded)
    bound = Generation(id="bound", prompt=(4, 5), max_tokens=9, sampling=GREEDY, mask=Even())
    with disaggregated(prefill, decode) as engine:
        apart, even = generate(engine, [request, bound])
    engine_of_both = PrefillEngine(decode, Limits(**LIMITS))  # type: ignore[arg-type]
    (together,) = generate(engine_of_both, [request])
    engine_of_both.close()
    assert apart.ids == together.ids
    for token, other in zip(apart.tokens, together.tokens, strict=True):
        assert token.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert len(even.ids) == 3
    assert even.finish == STOP


def test_cancellations_at_any_moment(prefill: Programs, decode: Programs, plain: Greedy) -> None:
    random = np.random.default_rng(3)
    with disaggregated(prefill, decode, n_blocks=24) as engine:
        outputs = []
        for i, request in enumerate(requests(40)):
            outputs.append((request, Output()))
            cancel_at = i % 4  # tokens: in prefill, in transfer, while it decodes; 3 for never

            def deliver(
                token: object,
                request: Generation = request,
                output: Output = outputs[-1][1],
                cancel_at: int = cancel_at,
            ) -> None:
                output.deliver(token)  # type: ignore[arg-type]
                if len(output.tokens) == cancel_at < 3:
                    engine.cancel(request.id)

            engine.submit(request, deliver)
            if cancel_at == 0 and random.random() < 0.5:
                engine.cancel(request.id)
        for request, output in outputs:
            whole = plain.continuation(request.prompt, 12)
            assert output.wait().ids == whole[: len(output.ids)]
            assert output.finish in (LENGTH, CANCELLED)
        stats = engine.stats()
        assert {output.finish for _, output in outputs} == {LENGTH, CANCELLED}
    assert stats.finished == 40


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_failure_of_one_side(
    prefill: Programs, decode: Programs, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("out of memory")

    with disaggregated(prefill, decode) as engine:
        failing = {"prefill": prefill, "decode": decode}[side]
        monkeypatch.setattr(failing, "logits", fail)
        outputs = generate(engine, requests(9))
        late = generate(engine, [replace(requests(1)[0], id="late")])
        assert not engine.stats().healthy
    assert {output.finish for output in outputs + late} == {FAILED}


def test_closing_ends_what_runs(prefill: Programs, decode: Programs) -> None:
    started = threading.Event()
    outputs = []
    with disaggregated(prefill, decode) as engine:
        for request in requests(9, max_tokens=24):
            output = Output()

            def deliver(token: object, output: Output = output) -> None:
                output.deliver(token)  # type: ignore[arg-type]
                started.set()

            outputs.append(output)
            engine.submit(request, deliver)
        assert started.wait(20)
        engine.close()
    assert {output.wait().finish for output in outputs} <= {CANCELLED, LENGTH}


def test_too_long_a_request_is_refused(prefill: Programs, decode: Programs) -> None:
    request = Generation(id="long", prompt=(1,) * CONTEXT, max_tokens=1)
    with disaggregated(prefill, decode) as engine:
        with pytest.raises(BadInput, match="serves up to 64"):
            engine.submit(request, Output().deliver)
        assert isinstance(engine.stats(), EngineStats)


@contextmanager
def prefill_server(prefill: Programs, port: int = 0) -> Iterator[PrefillServer]:
    """A server that computes prompts for those who know its key; no block is left in it."""
    engine = PrefillEngine(prefill, Limits(**LIMITS))  # type: ignore[arg-type]
    options = ServerOptions(port=port, api_keys=frozenset(["secret"]))
    ports: list[int] = []
    listening = threading.Event()

    def started(host: str, port: int) -> None:
        ports.append(port)
        listening.set()

    server = Server(App(engine, texts(), options, prefill=engine), options, started)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert listening.wait(10)
        yield PrefillServer(url=f"http://127.0.0.1:{ports[0]}", model="tiny", key="secret")
    finally:
        server.end()
        server.end()
        thread.join(10)
        stats = engine.stats()
        engine.close()
    assert stats.blocks_used == stats.running == stats.waiting == 0


def test_prompts_from_a_server(prefill: Programs, decode: Programs, plain: Greedy) -> None:
    bound = Generation(id="bound", prompt=(4, 5), max_tokens=9, sampling=GREEDY, mask=Even())
    with (
        prefill_server(prefill) as server,
        disaggregated(RemotePrefill(server), decode) as engine,
    ):
        *outputs, even = generate(engine, [*requests(7), bound])
        (again,) = generate(engine, [replace(requests(7)[0], id="again")])
        stats = engine.stats()
    texts = [plain.continuation(prompt, 12) for prompt in prompts(7)]
    assert [output.ids for output in outputs] == texts
    assert again.ids == texts[0]
    assert again.tokens[0].cached > 0
    assert len(even.ids) == 3
    assert even.finish == STOP
    assert stats.generated_tokens == 8 * 12 + 3
    assert stats.cached_tokens == again.tokens[0].cached


def test_cancellations_of_prompts_from_a_server(
    prefill: Programs, decode: Programs, plain: Greedy
) -> None:
    with (
        prefill_server(prefill) as server,
        disaggregated(RemotePrefill(server), decode, n_blocks=24) as engine,
    ):
        outputs = [(request, Output()) for request in requests(24)]
        for i, (request, output) in enumerate(outputs):
            engine.submit(request, output.deliver)
            if i % 3 == 0:
                engine.cancel(request.id)
            if i % 3 == 1:
                threading.Timer(0.02 * i, engine.cancel, [request.id]).start()
        for request, output in outputs:
            whole = plain.continuation(request.prompt, 12)
            assert output.wait().ids == whole[: len(output.ids)]
            assert output.finish in (LENGTH, CANCELLED)


def test_a_server_that_is_not_there_or_refuses(
    prefill: Programs, decode: Programs, plain: Greedy
) -> None:
    request = requests(1)[0]
    with prefill_server(prefill) as server:
        for wrong in (replace(server, key="other"), replace(server, model="other")):
            with disaggregated(RemotePrefill(wrong), decode) as engine:
                assert generate(engine, [request])[0].finish == FAILED
    with disaggregated(RemotePrefill(server), decode) as engine:
        assert generate(engine, [request])[0].finish == UNREACHABLE
        with prefill_server(prefill, port=int(server.url.rpartition(":")[2])):
            (output,) = generate(engine, [request])
    assert output.ids == plain.continuation(request.prompt, 12)


def test_a_prefill_server_is_watched(prefill: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_prefill, "WATCH_SECONDS", 0.02)

    def becomes(reachable: bool) -> bool:
        deadline_s = time.monotonic() + 10
        while remote.stats().reachable is not reachable and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return remote.stats().reachable is reachable

    with prefill_server(prefill) as server:
        remote = RemotePrefill(server)
        remote.watch()
        assert remote.stats().reachable
    try:
        assert becomes(False)
        with prefill_server(prefill, port=int(server.url.rpartition(":")[2])):
            assert becomes(True)
    finally:
        remote.close()


def test_a_server_that_falls_silent_or_breaks_off(decode: Programs) -> None:
    answers = [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n\x00", b"no HTTP\r\n\r\n"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = PrefillServer(
            url=f"http://127.0.0.1:{listener.getsockname()[1]}", model="tiny", key=""
        )
        with disaggregated(RemotePrefill(server), decode) as engine:
            for answer in answers:
                output = Output()
                engine.submit(requests(1)[0], output.deliver)
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                    if not answer:  # silent
                        engine.cancel("0")
                        assert output.wait().finish == CANCELLED
                assert output.wait().finish in (CANCELLED, UNREACHABLE)


@pytest.mark.parametrize("url", ["localhost:1", "ftp://a:1", "http://a:b", "http://a/path", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(BadInput, match="Write it as http://HOST:PORT"):
        RemotePrefill(PrefillServer(url=url, model=""))
