"""Results of a compile: the compiled program, or the failure. Does not import JAX.

A result is passed between processes, and stored in the cache, as one JSON document.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from shardwise.check.compiling.targets import MEMORY_LIMIT, Target
from shardwise.check.source_line import SourceLine
from shardwise.errors import BadFile

# An option that lets the TPU's compiler continue when a program exceeds the memory.
COMPILE_ANYWAY: Final = "xla_tpu_no_crash_on_oom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The compiler's memory statistics of one device, in bytes.

    Args:
        arguments: all inputs, donated ones included.
        output: all results.
        alias: the part of `output` that reuses the memory of donated arguments.
        temporaries: memory reserved for intermediates, which need not be live at the same time.
        peak: the most bytes that are live at one time, arguments and output included.
        code: the program itself.
        host_*: the same quantities in host memory.
    """

    arguments: int
    output: int
    alias: int
    temporaries: int
    peak: int
    code: int = 0
    host_arguments: int = 0
    host_output: int = 0
    host_alias: int = 0
    host_temporaries: int = 0

    @property
    def device_bytes(self) -> int:
        """Memory that the device needs: the peak, or an upper bound if arrays are on the host.

        In that case the compiler's peak includes the arguments in host memory, and the larger of
        the two memories' temporaries. The smaller of two bounds is returned: this peak without the
        host's arguments; and the device's arguments, results and temporaries together.
        """
        if not (self.host_temporaries or self.host_arguments):
            return self.peak
        total = self.arguments + self.output - self.alias + self.temporaries
        return min(self.peak - self.host_arguments, total)

    @property
    def host_bytes(self) -> int:
        """Host memory that the program uses or reserves."""
        return self.host_arguments + self.host_output - self.host_alias + self.host_temporaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Physical position of the device that runs one partition of the program.

    Args:
        coords: torus coordinates of the chip; for GPUs (domain, host, GPU); empty on the CPU.
        core: index of the device on its chip.
        slice_index: index of its slice; slices are connected by DCN.
    """

    coords: tuple[int, ...]
    core: int = 0
    slice_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultArray:
    """An array that the function returns.

    Args:
        path: its path in the result, such as `[0]['w']`; "" if it is the result.
        shape: dtype and global dims, such as `bfloat16[8,128]`.
        spec: for each dim, the mesh axes over which it is sharded; None if that is unknown.
    """

    path: str
    shape: str
    spec: tuple[tuple[str, ...], ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcast:
    """A matmul of the traced program in fp32, for which a 16-bit array was cast.

    Args:
        op_name: end of the op names of the compiled matmuls.
        source: the line of the user's code; None if it is not known.
    """

    op_name: str
    source: SourceLine | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A sharding constraint of the traced program, which states the axes of all dims.

    Args:
        op_name: end of the op names of the compiled operations that compute the array.
        computed: the line of the user's code that computes it; None if it is not known.
        axes: the mesh axes over which the constraint splits the array.
        sources: line of the constraint, and the line that called it.
    """

    op_name: str
    computed: SourceLine | None
    axes: tuple[str, ...]
    sources: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled program with its statistics.

    Args:
        target: the machine that it was compiled for.
        mesh: axis -> size. Partitions number the mesh positions, the last axis fastest.
        places: physical position of each partition.
        hlo_gz: gzipped text of the scheduled program; `hlo` is the text.
        memory: memory statistics of one device.
        cost: totals of the compiler's own cost analysis, which counts the body of a loop once.
        options: compiler options that were set.
        versions: versions of jax, jaxlib and the compiler.
        lower_s: seconds to trace and lower the program, when it was compiled.
        compile_s: seconds to compile it.
        rss_bytes: peak memory of the compiling process.
        cached: whether it was read from the cache.
        upcasts: matmuls in fp32 of arrays that were cast from 16 bits.
        constraints: sharding constraints of the traced program.
        results: the arrays that it returns.
    """

    name: str
    target: Target
    mesh: dict[str, int]
    places: tuple[Place, ...]
    hlo_gz: bytes = field(repr=False)
    memory: Memory
    cost: dict[str, float]
    options: dict[str, str]
    versions: dict[str, str]
    lower_s: float
    compile_s: float
    rss_bytes: int
    cached: bool = False
    upcasts: tuple[Upcast, ...] = ()
    constraints: tuple[Constraint, ...]
    results: tuple[ResultArray, ...] = ()

    @property
    def total_s(self) -> float:
        """Seconds to trace, lower and compile."""
        return self.lower_s + self.compile_s

    @property
    def hlo(self) -> str:
        """The scheduled program as text."""
        return gzip.decompress(self.hlo_gz).decode()

    @property
    def fits(self) -> bool | None:
        """Whether one device has enough memory; None if that is unknown.

        The TPU's compiler rejects a program that does not fit in its chip; other compilers reject
        none. It has accepted programs larger than a small memory that the user set.
        """
        is_proved = COMPILE_ANYWAY not in self.options and MEMORY_LIMIT not in self.options
        if self.target.platform == "tpu" and is_proved:
            return True
        if not self.target.proves_memory or self.target.memory_bytes is None:
            return None
        return self.memory.device_bytes <= self.target.memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One entry of the compiler's list of largest allocations."""

    bytes: int
    shape: str
    op_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The memory of a device is too small.

    Args:
        required, available: bytes on one device, as the compiler states them; else None.
        buffers: the compiler's list of largest allocations; () if it gives none.
        text: the compiler's message; "" if the compiler gave none and this package compared the
            peak with the memory.
        program: the program, compiled without the memory limit to show what fills the memory.
    """

    required: int | None
    available: int | None
    buffers: tuple[Allocation, ...] = ()
    text: str = ""
    program: Compiled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemOverflow:
    """An operation needs `required` bytes of VMEM, more than its `limit`.

    Args:
        is_kernel: whether it is a Pallas kernel.
    """

    required: int
    limit: int
    op_name: str
    is_kernel: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadOption:
    """A compiler option is unknown, or its value cannot be parsed."""

    option: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingError:
    """A sharding is invalid: its axes do not divide a dim, or one axis is used twice.

    `source` is the line of the user's code that is at fault, None if it is not known.
    """

    text: str
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """The time limit was exceeded in the named stage."""

    stage: str
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The compiling process itself exceeded its memory limit; both numbers are bytes."""

    stage: str
    limit: int
    reached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """The system killed the compiling process, as it does when memory runs out."""

    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFailure:
    """Any other failure, with its message and the line of the user's code that raised it."""

    stage: str
    text: str
    source: SourceLine | None = None


Failure = (
    OutOfMemory
    | VmemOverflow
    | BadOption
    | ShardingError
    | Timeout
    | MemoryLimit
    | Killed
    | OtherFailure
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An error of this package was raised while the program was built.

    Args:
        error: name of its class in `shardwise.errors`.
        problems: its messages.
    """

    error: str
    problems: tuple[str, ...]


_RESULT_TYPES: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        *(Compiled, Refused, OutOfMemory, VmemOverflow, BadOption),
        *(ShardingError, Timeout, MemoryLimit, OtherFailure),
    )
}


def encode(value: Compiled | Failure | Refused) -> bytes:
    """Encode a result as a JSON document."""
    return msgspec.json.encode({"kind": type(value).__name__, "value": value})


def decode(document: bytes) -> Compiled | Failure | Refused:
    """Decode a document that `encode` wrote.

    Raises:
        BadFile: the document does not contain a result.
    """
    try:
        envelope: Mapping[str, msgspec.Raw] = msgspec.json.decode(
            document, type=dict[str, msgspec.Raw]
        )
        kind = _RESULT_TYPES[msgspec.json.decode(envelope["kind"], type=str)]
        value: Compiled | Failure | Refused = msgspec.json.decode(envelope["value"], type=kind)
    except (msgspec.MsgspecError, KeyError) as error:
        raise BadFile(f"not the result of a compile: {error}.") from None
    return value
