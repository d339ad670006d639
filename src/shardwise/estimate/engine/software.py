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
        mixes: chunks of prompts run in the same pass as decoding; else passes of their own first.
        chunk: tokens of one pass at most.
        launch_s: what the host adds to each kernel; 0 where a graph starts them.
        eager_s: seconds of the host for each kernel of a pass with prompts, which no graph holds:
            such a pass is no shorter.
        overlaps: collectives run under products (XLA's asynchronous ones on TPUs); else a pass
            waits for each.
    """

    name: str
    request_s: float = 0.0
    pass_s: float = 0.0
    sequence_s: float = 0.0
    message_s: float = 0.0
    hop_s: float = 0.0
    mixes: bool = True
    chunk: int = 8192
    launch_s: float = 0.0
    eager_s: float = 0.0
    overlaps: bool = False


IDEAL = Engine(name="ideal")
USUAL = Engine(name="usual", request_s=0.025, pass_s=3e-4, sequence_s=5e-6)
ENGINES = {
    "vLLM": Engine(name="vLLM", request_s=0.025, pass_s=3e-4, sequence_s=5e-6),
    "SGLang": Engine(name="SGLang", request_s=0.2, pass_s=3e-4, sequence_s=5e-6, mixes=False),
    "TensorRT-LLM": Engine(name="TensorRT-LLM", request_s=0.05, pass_s=3e-4, sequence_s=5e-6),
    "NVIDIA NIM": Engine(name="NVIDIA NIM", request_s=0.0, pass_s=3e-4, sequence_s=5e-6),
    "FasterTransformer": Engine(name="FasterTransformer", message_s=2e-5, hop_s=6e-6),
    "gpt-fast": Engine(name="gpt-fast", hop_s=2e-6),
    "llama.cpp": Engine(name="llama.cpp", launch_s=0.0),
    "jax-llm-examples": Engine(name="jax-llm-examples", overlaps=True),
    "in-house JAX": Engine(name="in-house JAX"),
    "vLLM TPU": Engine(name="vLLM TPU", request_s=0.025),
}


def engine_named(framework: str) -> Engine:
    """The engine of a framework and version, or the usual one.

    >>> engine_named("TensorRT-LLM 1.0 (PyTorch backend)").name
    'TensorRT-LLM'
    """
    known = [name for name in ENGINES if framework.startswith(name)]
    return ENGINES[max(known, key=len)] if known else USUAL
