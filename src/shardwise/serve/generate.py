"""Continue one prompt in this process, without a server."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

from shardwise.errors import NoAnswer
from shardwise.serve.request import FAILED, Engine, Generation, Sampling, Token
from shardwise.serve.text.detokenize import Detokenizer, StopStrings
from shardwise.serve.text.texts import Texts


def stream(
    engine: Engine,
    texts: Texts,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    sampling: Sampling,
    stops: Sequence[str] = (),
) -> Iterator[str]:
    """Generate a text, piece by piece.

    Args:
        prompt: token ids.
        max_tokens: the most tokens to generate; fewer if the engine's context is full.
        stops: texts that end the output; they are not part of it.

    Raises:
        BadInput: prompt and output are too long for the engine.
        NoAnswer: the engine has failed.
    """
    room = max(1, engine.max_context - len(prompt))
    tokens: queue.SimpleQueue[Token] = queue.SimpleQueue()
    generation = Generation(
        id="generate",
        prompt=tuple(prompt),
        max_tokens=min(max_tokens, room),
        sampling=sampling,
        stop_tokens=texts.stop_tokens,
    )
    engine.submit(generation, tokens.put)
    detokenizer = Detokenizer(texts.vocabulary, prompt)
    stop_strings = StopStrings(stops)
    try:
        finish = ""
        while not finish and not stop_strings.stopped:
            token = tokens.get()
            finish = token.finish
            if token.id >= 0:
                yield stop_strings.push(detokenizer.push(token.id))
        if finish == FAILED:
            raise NoAnswer("the engine has failed; its log has the reason.")
        yield stop_strings.push(detokenizer.finish()) + stop_strings.finish()
    finally:
        engine.cancel(generation.id)
