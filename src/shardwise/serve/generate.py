"""Generate text with a model in this process, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise.serve.request import Sampling


def generate(
    model: str,
    prompt: str,
    *,
    sampling: Sampling,
    max_tokens: int,
    stop: Sequence[str] = (),
    chat: bool = False,
) -> Iterator[str]:
    """Yield the text of a continuation in pieces, as they are generated.

    Args:
        model: what `shardwise serve` takes: a preset, a folder, a GGUF file, a plan of serving.
        prompt: text to continue, or with `chat` the user's message.
        sampling: how tokens are chosen.
        max_tokens: the most tokens to generate.
        stop: texts at which the output ends; they are not part of it.
        chat: put the prompt into the model's chat template.

    Raises:
        BadInput: the model cannot be served, or the prompt is too long for it.
        MissingExtra: a package that the engine needs is not installed.
    """
    raise NotImplementedError
