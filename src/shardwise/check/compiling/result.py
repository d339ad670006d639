"""Results of a compile: the compiled program, or the failure. No JAX.

They are passed between processes, and stored in the cache, as one JSON document.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from shardwise.check.compiling.targets import Target
from shardwise.errors import BadFile

# Lets the TPU's compiler continue where it would report that the memory is too small.
COMPILE_ANYWAY: Final = "xla_tpu_no_crash_on_oom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The compiler's memory statistics of one device, in bytes.

    Args:
        arguments: inputs, donated arguments included.
        output: results; `alias` bytes of them reuse donated arguments.
        temporaries: the arena of intermediates, which need not be live at the same time.
        peak: most bytes that are live at one time, arguments and output included.
        code: the program itself.
        host_*: the same in host memory.
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
        """Memory that the device needs: the peak, or an upper bound with arrays on the host.

        The compiler's peak then includes the arguments of both memories, and the larger of their
        temporaries. Arguments, results and all temporaries of the device are a bound as well.
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
    """Physical position of one partition of the program.

    Args:
        coords: the chip on its torus; for GPUs domain, host and GPU; empty on the CPU.
        core: the device within its chip.
        slice_index: the slice; slices are connected by DCN.
    """

    coords: tuple[int, ...]
    core: int = 0
    slice_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled program with its statistics.

    Args:
        name: of the program.
        target: the machine that it was compiled for.
        mesh: sizes of the mesh axes, in order; partitions are numbered row-major.
        places: of each partition.
        hlo_gz: the scheduled program as text, compressed; read it with `hlo`.
        memory: bytes of one device.
        cost: the compiler's own cost analysis, which counts the body of a loop once.
        options: compiler options that were set.
        versions: of jax, jaxlib and the compiler.
        lower_s: seconds to trace and lower, in the run that compiled.
        compile_s: seconds to compile.
        rss_bytes: peak memory of the compiling process.
        cached: whether it was read from the cache.
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
        """Whether one device has enough memory; None where that is unknown.

        The TPU's compiler rejects what does not fit; others compile it.
        """
        if self.target.platform == "tpu" and COMPILE_ANYWAY not in self.options:
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
        required, available: bytes of one device, from the compiler.
        buffers: the compiler's list of largest allocations, () where it gives none.
        text: the compiler's message; "" where this package compared the peak with the memory.
        program: the program compiled despite the limit, to show what fills the memory.
    """

    required: int | None
    available: int | None
    buffers: tuple[Allocation, ...] = ()
    text: str = ""
    program: Compiled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemOverflow:
    """A kernel needs more VMEM than a TPU core has; bytes."""

    required: int | None
    limit: int | None
    op_name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadOption:
    """An unknown compiler option, or a value that cannot be parsed."""

    option: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingError:
    """An invalid sharding: a dim that its axes do not divide, an axis used twice."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """The time limit was exceeded in the named stage."""

    stage: str
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The compiling process exceeded its own memory limit; bytes."""

    stage: str
    limit: int
    reached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFailure:
    """Any other failure, with its message."""

    stage: str
    text: str


Failure = (
    OutOfMemory | VmemOverflow | BadOption | ShardingError | Timeout | MemoryLimit | OtherFailure
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One of this package's own errors, raised while the program was built."""

    error: str
    problems: tuple[str, ...]


_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        *(Compiled, Refused, OutOfMemory, VmemOverflow, BadOption),
        *(ShardingError, Timeout, MemoryLimit, OtherFailure),
    )
}


def encode(value: Compiled | Failure | Refused) -> bytes:
    """A result as one JSON document."""
    return msgspec.json.encode({"kind": type(value).__name__, "value": value})


def decode(document: bytes) -> Compiled | Failure | Refused:
    """The result in a document that `encode` wrote.

    Raises:
        BadFile: the document has another form.
    """
    try:
        envelope: Mapping[str, msgspec.Raw] = msgspec.json.decode(
            document, type=dict[str, msgspec.Raw]
        )
        kind = _KINDS[msgspec.json.decode(envelope["kind"], type=str)]
        value: Compiled | Failure | Refused = msgspec.json.decode(envelope["value"], type=kind)
    except (msgspec.MsgspecError, KeyError) as error:
        raise BadFile(f"not the result of a compile: {error}.") from None
    return value
