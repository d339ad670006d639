"""What serving software adds to the work of the chips, and how it schedules: one table of engines.

`plan --engine` and `validate --serve` read the same table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise import units
from shardwise.arrays import Num, where
from shardwise.errors import UnknownName
from shardwise.hardware import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOverhead:
    """Time that an engine's software adds, how it schedules, and what its kernels reach.

    Args:
        name: word of the software, as `--engine` takes it.
        published_as: how the names of the software begin in published measurements.
        matmuls: rate of its large matmuls, relative to that of the chip's `[serving]` table.
        narrow: the same for matmuls that widen weights of less than 8 bits, on top of `matmuls`.
        warp_matmuls: whether large matmuls are written for Ampere, and reach on newer chips what
            instructions of one warp do.
        half_sums: whether matmuls in 16 bits also sum in 16 bits, which GeForce does at twice the
            rate: half of that for int8.
        elementwise: bytes of its element-wise kernels, relative to those of fused ones in 16 bits.
        gap: idle time between its kernels, relative to the table's `kernel_s`: fusion and CUDA
            graphs make it small.
        request_s: seconds that the server spends on a request outside the engine: parsing,
            tokenizing, sending the first token.
        user_s: seconds that the loop of its HTTP server spends on one sequence after each pass: a
            first token waits behind the tokens of all other sequences.
        hold_passes: passes that a request waits, beyond the end of that in which it arrives: the
            engine has chosen the next one already, or polls for requests less often.
        rank_hold_passes: passes that prompts wait besides, if attention is data-parallel: until
            the other ranks have prompts, too.
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
        max_sequences: most sequences in one pass, for each shard of the batch.
        unused_share: share of the HBM that it leaves free for memory that it does not count.
        unused_after_weights: whether that is a share of what the weights leave.
        runtime_bytes: HBM that its libraries hold on each chip beside weights and activations: the
            CUDA context, NCCL's buffers, workspaces of attention kernels, CUDA graphs.
        passes_ahead: passes that are chosen before the one that runs has ended, so that a request
            that arrives meanwhile is not in them.
        keeps_whole_sequences: whether its cache has room for all tokens of a sequence in layers
            with a window too, of which it reads the window alone.
        kinds: kinds of chips that it runs on (`Chip.kind`); empty for all.
        vendor: maker of the chips that it runs on; empty for all.
        overlaps: whether collectives run during matmuls, as XLA's asynchronous collectives on TPUs.
    """

    name: str
    published_as: tuple[str, ...] = ()
    matmuls: float = 1.0
    narrow: float = 1.0
    warp_matmuls: bool = False
    half_sums: bool = False
    elementwise: float = 1.0
    gap: float = 1.0
    request_s: float = 0.0
    user_s: float = 0.0
    hold_passes: float = 0.0
    rank_hold_passes: float = 0.0
    pass_s: float = 0.0
    sequence_s: float = 0.0
    message_s: float = 0.0
    hop_s: float = 0.0
    max_read_bytes_per_s: float | None = None
    chunked_prefill: bool = True
    max_tokens: int = 8192
    max_sequences: int = 2048
    overlaps: bool = False
    unused_share: float = 0.1
    unused_after_weights: bool = False
    keeps_whole_sequences: bool = False
    runtime_bytes: float = 0.0
    passes_ahead: int = 0
    kinds: tuple[str, ...] = ()
    vendor: str = ""

    def runs_on(self, chip: Chip) -> bool:
        """Whether the software exists for the chip."""
        is_kind = not self.kinds or chip.kind in self.kinds
        return is_kind and (not self.vendor or chip.vendor == self.vendor)

    def first_token_s(self, pass_s: Num, users: Num, ranks: Num = 1) -> Num:
        """Seconds by which the software delays the first token of a request.

        Args:
            pass_s: mean seconds of a pass.
            users: sequences that the engine serves at the same time.
            ranks: ranks of data-parallel attention that also decode.
        """
        passes = self.hold_passes + where(ranks > 1, self.rank_hold_passes, 0.0)
        return self.request_s + users * self.user_s + passes * pass_s


IDEAL = EngineOverhead(name="ideal")
# vLLM logs 1.5 to 2.5 GiB of "non-torch" memory on a GPU of 80 GB, and up to 1 GiB of CUDA graphs.
RUNTIME_BYTES = 2.0 * units.GiB
# The first numbers of an engine are fitted by `bench/calibrate_serving.py`, shrunk towards those of
# `UNKNOWN`. Scheduling is from the engines' documentation.
UNKNOWN = EngineOverhead(name="unknown", request_s=0.03, user_s=2e-4, pass_s=2e-4, sequence_s=5e-6)
ENGINES = {
    engine.name: engine
    for engine in (
        replace(
            UNKNOWN,
            name="vllm",
            published_as=("vLLM",),
            narrow=1.36,
            gap=1.03,
            request_s=0.038,
            user_s=5.1e-4,
            hold_passes=0.25,
            sequence_s=7.8e-6,
            max_sequences=1024,
            runtime_bytes=RUNTIME_BYTES,
            unused_share=0.1,  # `gpu_memory_utilization` 0.9
        ),
        replace(
            UNKNOWN,
            name="sglang",
            kinds=("gpu", "cpu"),
            published_as=("SGLang",),
            gap=1.09,
            request_s=0.175,
            user_s=6.2e-4,
            hold_passes=0.22,
            sequence_s=2.7e-5,
            chunked_prefill=False,
            runtime_bytes=RUNTIME_BYTES,
            unused_share=0.12,  # of `mem_fraction_static`, which it derives from the memory
        ),
        replace(
            UNKNOWN,
            name="trtllm",
            kinds=("gpu",),
            vendor="NVIDIA",
            published_as=("TensorRT-LLM", "NVIDIA NIM"),
            gap=1.05,
            request_s=0.054,
            user_s=1.2e-4,
            hold_passes=0.22,
            sequence_s=7.2e-6,
            runtime_bytes=RUNTIME_BYTES,
            unused_after_weights=True,  # `free_gpu_memory_fraction` 0.9
            # Half of the 50 iterations that are the default of `timeout_iters` in its
            # attention_dp_config.
            rank_hold_passes=25.0,
        ),
        replace(
            UNKNOWN,
            name="fastertransformer",
            kinds=("gpu",),
            vendor="NVIDIA",
            published_as=("FasterTransformer",),
            gap=1.01,
            message_s=2.2e-5,
            hop_s=2.4e-6,
        ),
        replace(
            UNKNOWN,
            name="gpt-fast",
            kinds=("gpu", "cpu"),
            published_as=("gpt-fast",),
            gap=0.99,
        ),
        replace(
            UNKNOWN,
            name="llama.cpp",
            kinds=("gpu", "cpu"),
            published_as=("llama.cpp",),
            matmuls=0.86,
            narrow=0.61,
            max_read_bytes_per_s=1.08e12,
            warp_matmuls=True,
            half_sums=True,
            # Activations are in fp32, converted to 16 bits and back around each matmul; every
            # operation of its graph is a kernel.
            elementwise=4.0,
            max_tokens=512,  # --ubatch-size
        ),
        replace(
            UNKNOWN,
            name="jax",
            published_as=("jax-llm-examples",),
            overlaps=True,
        ),
        replace(
            UNKNOWN,
            name="shardwise",
            published_as=("Shardwise",),
            request_s=0.0,
            user_s=0.0,
            hold_passes=0.0,
            max_tokens=512,
            passes_ahead=1,
            keeps_whole_sequences=True,
        ),
        UNKNOWN,
    )
}
OURS = ENGINES["shardwise"]


def measured_overhead(chip: Chip) -> EngineOverhead:
    """Overhead of this package's engine on a chip that `hw measure` has measured."""
    return replace(
        OURS,
        request_s=chip.need("serving.request"),
        pass_s=chip.need("serving.pass"),
        sequence_s=chip.need("serving.sequence"),
    )


def engine_overhead(word: str) -> EngineOverhead:
    """Overhead of the engine of a word of `--engine`.

    Raises:
        UnknownName: the table has no such engine.
    """
    if word not in ENGINES:
        raise UnknownName("engine", word, ENGINES)
    return ENGINES[word]


def engine_problems(word: str, chip: Chip) -> list[str]:
    """Why the engine of a word does not run on a chip, with those that do; empty if it does.

    Raises:
        UnknownName: the table has no such engine.
    """
    engine = engine_overhead(word)
    if engine.runs_on(chip):
        return []
    platforms = " and ".join(f"{kind.upper()}s" for kind in engine.kinds)
    if engine.vendor:
        platforms = f"{platforms} of {engine.vendor}"
    running = [e.name for e in ENGINES.values() if e is not UNKNOWN and e.runs_on(chip)]
    return [
        f"engine {word} runs on {platforms}, not on {chip.name} ({chip.title}). "
        f"On it: {', '.join(running)}."
    ]


def published_engine(framework: str) -> EngineOverhead:
    """Overhead of the engine of a published measurement; `UNKNOWN` if the table lacks it.

    Args:
        framework: name, with or without a version.

    >>> published_engine("TensorRT-LLM 1.0 (PyTorch backend)").name
    'trtllm'
    """
    for engine in ENGINES.values():
        if framework.startswith(engine.published_as or ("\0",)):
            return engine
    return UNKNOWN
