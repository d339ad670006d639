"""A server of a fake engine, in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.serve.http.app import App
from shardwise.serve.http.options import ServerOptions
from shardwise.serve.http.run import Server
from shardwise.serve.request import Generation
from shardwise.serve.text.structure import Grammar
from shardwise.serve.text.texts import Texts, texts_of
from shardwise.serve.text.vocabulary import FileVocabulary
from tests.unit.serve.http.fake_engine import FakeEngine
from tests.unit.serve.tiny import byte_level

MODEL = "tiny"


def texts(template: str | None = None) -> Texts:
    end = byte_level().token_to_id("<|endoftext|>")
    stop_tokens = frozenset([end])
    vocabulary = FileVocabulary(byte_level())
    return texts_of(MODEL, vocabulary, stop_tokens=stop_tokens, template=template)


class Replies:
    """What the engine's model writes: the text that the test has set, token by token."""

    def __init__(self) -> None:
        self.text = "hello world"
        self.endless = False

    def __call__(self, generation: Generation) -> Iterator[int]:
        tokens = byte_level().encode(self.text).ids
        yield from tokens
        while self.endless:
            yield from tokens


class Served:
    """A running server."""

    def __init__(
        self, engine: FakeEngine, server: Server, thread: threading.Thread, host: str, port: int
    ) -> None:
        self.engine = engine
        self.server = server
        self.thread = thread
        self.url = f"http://{host}:{port}"
        self.replies = engine.reply


@contextmanager
def serving(
    options: ServerOptions | None = None,
    *,
    grammar: Grammar | None = None,
    template: str | None = None,
    max_context: int = 4096,
) -> Iterator[Served]:
    """Serve a fake engine while the block runs; it has to leave nothing behind."""
    options = options or ServerOptions(port=0)
    engine = FakeEngine(Replies(), byte_level().get_vocab_size(), max_context=max_context)
    address: list[tuple[str, int]] = []
    listening = threading.Event()

    def started(host: str, port: int) -> None:
        address.append((host, port))
        listening.set()

    server = Server(App(engine, texts(template), options, grammar=grammar), options, started)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert listening.wait(10)
        yield Served(engine, server, thread, *address[0])
    finally:
        server.end()
        server.end()
        thread.join(10)
        idle = engine.idle()
        engine.close()
    assert not thread.is_alive()
    assert idle, "generations were left running"
