"""What serving software adds to the work of the chips, by the engine's name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine's habits.

    Args:
        name: as published runs call it.
        pass_s: seconds of the host between two passes that no chip works.
        sequence_s: the same for each sequence of a pass: sampling, detokenising, bookkeeping.
        message_s: what it adds to each collective, and `hop_s` for each chip that joins beyond the
            first: rings of NCCL against kernels that read all peers at once.
        mixes: chunks of prompts run in the same pass as decoding; else passes of their own first.
        chunk: tokens of one pass at most.
        launch_s: what the host adds to each kernel; 0 where a graph starts them.
    """

    name: str
    pass_s: float = 0.0
    sequence_s: float = 0.0
    message_s: float = 0.0
    hop_s: float = 0.0
    mixes: bool = True
    chunk: int = 8192
    launch_s: float = 0.0


IDEAL = Engine(name="ideal")
