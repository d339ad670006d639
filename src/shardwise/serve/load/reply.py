"""The answer to a request of a load, as this client saw it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a request; times are in seconds from the start of the measurement.

    Args:
        send_s: when the request was sent.
        token_s: when each token, or group of tokens that the server sent together, arrived.
        end_s: when the output ended.
        prompt_tokens, output_tokens, cached_tokens: counted by the server.
        expected_tokens: tokens of output that were requested.
        error: kind of the error; empty for a complete output.
        message: what the server or the connection said about it.
    """

    send_s: float
    token_s: tuple[float, ...] = ()
    end_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    expected_tokens: int
    error: str = ""
    message: str = ""
