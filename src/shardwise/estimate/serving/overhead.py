"""Time that serving software adds to the work of the chips, by name of the software."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.hardware import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOverhead:
    """Time that an engine's software adds, and how it schedules prefill and decode.

    Args:
        name: name of the software, as published runs call it.
        request_s: seconds that the server spends on a request outside the engine: parsing,
            tokenizing, sending the first token.
        pass_s: seconds of host work between two passes, during which the chips are idle.
        sequence_s: seconds of such host work for each sequence of a pass: sampling, detokenizing,
            bookkeeping.
        message_s: seconds added to each collective.
        hop_s: seconds added to each collective for every chip beyond the first: for NCCL's rings,
            not for kernels that read all peers at once.
        max_read_bytes_per_s: bandwidth that the kernels' reads do not exceed on any memory, because
            they keep too few loads in flight. None if no limit is known.
        chunked_prefill: whether chunks of prompts run in the same pass as decoding; otherwise
            prefill runs in separate passes, before decoding.
        max_tokens: largest number of tokens in one pass.
        passes_ahead: passes that are chosen before the one that runs has ended, so that a request
            that arrives meanwhile is not in them.
        overlaps: whether collectives run during matmuls, as XLA's asynchronous collectives on TPUs.
    """

    name: str
    request_s: float = 0.0
    pass_s: float = 0.0
    sequence_s: float = 0.0
    message_s: float = 0.0
    hop_s: float = 0.0
    max_read_bytes_per_s: float | None = None
    chunked_prefill: bool = True
    max_tokens: int = 8192
    overlaps: bool = False
    passes_ahead: int = 0


IDEAL = EngineOverhead(name="ideal")
# Times are fitted by `bench/calibrate_serving.py`; scheduling is from the engines' documentation.
DEFAULT_OVERHEAD = EngineOverhead(name="usual", request_s=0.03, pass_s=0.0002, sequence_s=5e-06)
ENGINES = {
    engine.name: engine
    for engine in (
        EngineOverhead(name="vLLM", request_s=0.03, pass_s=0.0002, sequence_s=5e-06),
        EngineOverhead(
            name="SGLang", request_s=0.25, pass_s=0.0002, sequence_s=5e-06, chunked_prefill=False
        ),
        EngineOverhead(name="TensorRT-LLM", request_s=0.15, pass_s=0.0002, sequence_s=5e-06),
        EngineOverhead(name="NVIDIA NIM", request_s=0.02, pass_s=0.0002, sequence_s=5e-06),
        EngineOverhead(
            name="FasterTransformer", pass_s=0.0002, sequence_s=5e-06, message_s=4e-05, hop_s=2e-06
        ),
        EngineOverhead(name="gpt-fast", pass_s=0.0002, sequence_s=5e-06),
        EngineOverhead(
            name="llama.cpp", pass_s=0.0002, sequence_s=5e-06, max_read_bytes_per_s=1.2e12
        ),
        EngineOverhead(name="jax-llm-examples", pass_s=0.0002, sequence_s=5e-06, overlaps=True),
        EngineOverhead(name="in-house JAX", pass_s=0.0002, sequence_s=5e-06),
        EngineOverhead(name="vLLM TPU", request_s=0.02, pass_s=0.0002, sequence_s=5e-06),
        EngineOverhead(
            name="Shardwise", pass_s=0.0002, sequence_s=5e-06, max_tokens=512, passes_ahead=1
        ),
    )
}


OURS = ENGINES["Shardwise"]


def measured_overhead(chip: Chip) -> EngineOverhead:
    """Overhead of this package's engine on a chip that `hw measure` has measured."""
    return replace(
        OURS,
        request_s=chip.need("serving.request"),
        pass_s=chip.need("serving.pass"),
        sequence_s=chip.need("serving.sequence"),
    )


def engine_overhead(framework: str) -> EngineOverhead:
    """Overhead of a serving framework, or `DEFAULT_OVERHEAD` if its name is unknown.

    Args:
        framework: name, with or without a version.

    >>> engine_overhead("TensorRT-LLM 1.0 (PyTorch backend)").name
    'TensorRT-LLM'
    """
    names = [name for name in ENGINES if framework.startswith(name)]
    return ENGINES[max(names, key=len)] if names else DEFAULT_OVERHEAD
