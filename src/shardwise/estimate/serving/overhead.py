"""What serving software adds to the work of the chips, by the engine's name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine's habits.

    Args:
        name: as published runs call it.
        request_s: seconds of a request in the server before and after the engine: reading text,
            cutting it into tokens, sending the first one.
        pass_s: seconds of the host between two passes that no chip works.
        sequence_s: the same for each sequence of a pass: sampling, detokenising, bookkeeping.
        message_s: what it adds to each collective, and `hop_s` for each chip that joins beyond the
            first: rings of NCCL against kernels that read all peers at once.
        most_bytes_per_s: what its kernels read at most, however fast the memory: each keeps too few
            loads under way. None where nothing tells of a limit.
        mixes: chunks of prompts run in the same pass as decoding; else passes of their own first.
        chunk: tokens of one pass at most.
        overlaps: collectives run under products (XLA's asynchronous ones on TPUs); else a pass
            waits for each.
    """

    name: str
    request_s: float = 0.0
    pass_s: float = 0.0
    sequence_s: float = 0.0
    message_s: float = 0.0
    hop_s: float = 0.0
    most_bytes_per_s: float | None = None
    mixes: bool = True
    chunk: int = 8192
    overlaps: bool = False


IDEAL = Engine(name="ideal")
# Numbers by `bench/calibrate_serving.py`; habits from the engines' documents.
USUAL = Engine(name="usual", request_s=0.03, pass_s=0.0002, sequence_s=5e-06)
ENGINES = {
    e.name: e
    for e in (
        Engine(name="vLLM", request_s=0.03, pass_s=0.0002, sequence_s=5e-06),
        Engine(name="SGLang", request_s=0.25, pass_s=0.0002, sequence_s=5e-06, mixes=False),
        Engine(name="TensorRT-LLM", request_s=0.15, pass_s=0.0002, sequence_s=5e-06),
        Engine(name="NVIDIA NIM", request_s=0.02, pass_s=0.0002, sequence_s=5e-06),
        Engine(
            name="FasterTransformer", pass_s=0.0002, sequence_s=5e-06, message_s=4e-05, hop_s=2e-06
        ),
        Engine(name="gpt-fast", pass_s=0.0002, sequence_s=5e-06),
        Engine(name="llama.cpp", pass_s=0.0002, sequence_s=5e-06, most_bytes_per_s=1.2e12),
        Engine(name="jax-llm-examples", pass_s=0.0002, sequence_s=5e-06, overlaps=True),
        Engine(name="in-house JAX", pass_s=0.0002, sequence_s=5e-06),
        Engine(name="vLLM TPU", request_s=0.02, pass_s=0.0002, sequence_s=5e-06),
    )
}


def engine_named(framework: str) -> Engine:
    """The engine of a framework and version, or the usual one.

    >>> engine_named("TensorRT-LLM 1.0 (PyTorch backend)").name
    'TensorRT-LLM'
    """
    known = [name for name in ENGINES if framework.startswith(name)]
    return ENGINES[max(known, key=len)] if known else USUAL
