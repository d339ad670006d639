"""How the server of a published run was started, where its source says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.estimate.serving.overhead import EngineOverhead
from shardwise.validate.records.fields import JsonReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """Flags of a server that change its scheduling.

    Args:
        max_tokens: largest number of tokens in one pass; None for the engine's default.
        poll_passes: decode passes between two looks for new requests, as SGLang's
            `--scheduler-recv-interval` says.
        wait_passes: passes for which the first of the waiting prompts waits for more, as
            TensorRT-LLM's `batch_wait_timeout_iters` says.
    """

    max_tokens: int | None = None
    poll_passes: int = 1
    wait_passes: int = 0

    def applied_to(self, engine: EngineOverhead, arrivals_per_pass: float) -> EngineOverhead:
        """The engine as its server was started.

        Prompts that arrive while the first one waits, wait half as long as that on average.

        Args:
            arrivals_per_pass: prompts that arrive during a pass, on average.

        >>> from shardwise.estimate.serving.overhead import ENGINES
        >>> sglang = replace(ENGINES["sglang"], hold_passes=0.25)
        >>> ServerFlags(poll_passes=30).applied_to(sglang, 0.1).hold_passes
        14.75
        >>> ServerFlags(wait_passes=20).applied_to(sglang, 0.0).hold_passes
        20.25
        """
        others = self.wait_passes * arrivals_per_pass
        waiting = self.wait_passes * (1 + others / 2) / (1 + others)
        return replace(
            engine,
            max_tokens=self.max_tokens or engine.max_tokens,
            hold_passes=engine.hold_passes + (self.poll_passes - 1) / 2 + waiting,
        )


USUAL_FLAGS = ServerFlags()


def server_flags(record: JsonReader) -> ServerFlags:
    """The flags that a record states."""
    return ServerFlags(
        max_tokens=record.optional_integer("max_tokens"),
        poll_passes=record.optional_integer("poll_passes") or 1,
        wait_passes=record.optional_integer("wait_passes", 0) or 0,
    )
