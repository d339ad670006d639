"""What comes back from a compile: the compiled program, or why there is none. No JAX.

Values travel between processes, and lie in the cache, as one JSON document.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from shardwise.check.compiling.targets import Target
from shardwise.errors import BadFile

# Lets the TPU's compiler go on where it would say that the memory is too small.
COMPILE_ANYWAY: Final = "xla_tpu_no_crash_on_oom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The compiler's account of the memory of one device, bytes.

    Args:
        arguments: what is passed in, donated arguments included.
        output: results; `alias` bytes of them take the place of donated arguments.
        temporaries: everything between, as laid out; the parts need not live at the same time.
        peak: the most that lives at one time, arguments and output included.
        code: the program itself.
        host_*: the same in the memory of the host.
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
    def needed(self) -> int:
        """What the device must have: the peak, or an upper bound where arrays lie on the host.

        The compiler's peak has the arguments of both memories then, and the temporaries of the one
        that has more of them. Arguments, results and all temporaries of the device are enough too.
        """
        if not (self.host_temporaries or self.host_arguments):
            return self.peak
        every = self.arguments + self.output - self.alias + self.temporaries
        return min(self.peak - self.host_arguments, every)

    @property
    def on_host(self) -> int:
        """What waits in the memory of the host, or has room there."""
        return self.host_arguments + self.host_output - self.host_alias + self.host_temporaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one partition of the program runs.

    Args:
        coords: the chip on its torus; for GPUs domain, host and GPU; empty on the CPU.
        core: the device within its chip.
        slice_index: the slice, joined to others over DCN.
    """

    coords: tuple[int, ...]
    core: int = 0
    slice_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A program as the compiler of a chip made it.

    Args:
        name: what the program calls itself.
        target: what it was compiled for.
        mesh: sizes of the mesh axes, in order; partitions count through them row-major.
        places: for each partition, its place.
        hlo_gz: the scheduled program as text, compressed; read it with `hlo`.
        memory: bytes of one device.
        cost: the compiler's own cost analysis, which counts the body of a loop once.
        options: the compiler's options that were set.
        versions: of jax, jaxlib and the compiler.
        lower_s: seconds to trace and lower; `compile_s` to compile; both of the run that compiled.
        rss_bytes: the most memory that the compiling process held.
        cached: whether it came from the cache.
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
    def hlo(self) -> str:
        """The scheduled program as text."""
        return gzip.decompress(self.hlo_gz).decode()

    @property
    def fits(self) -> bool | None:
        """Whether one device holds it; None where this compiler cannot say, or no source does.

        The compiler of a TPU refuses what does not fit; others compile it all the same.
        """
        if self.target.platform == "tpu" and COMPILE_ANYWAY not in self.options:
            return True
        if not self.target.proves_memory or self.target.memory_bytes is None:
            return None
        return self.memory.needed <= self.target.memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One array in the compiler's list of the largest."""

    bytes: int
    shape: str
    op_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The memory of a device is too small.

    Args:
        required, available: bytes of one device, as the compiler says them.
        buffers: the compiler's list of the largest arrays, empty where it gives none.
        text: its own words; empty where this package compared the peak with the memory.
        program: the program that it would run if the memory were there, to see what fills it.
    """

    required: int | None
    available: int | None
    buffers: tuple[Buffer, ...] = ()
    text: str = ""
    program: Compiled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VmemOverflow:
    """A kernel asks for more of a TPU core's own memory than it may have; bytes."""

    required: int | None
    limit: int | None
    op_name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadOption:
    """An option that this compiler does not know, or a value that it cannot read."""

    option: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingError:
    """Shardings that no program can have: a dim that its axes do not divide, an axis used twice."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """The wall limit passed in the stage named."""

    stage: str
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The compiling process itself took more memory than it may; bytes."""

    stage: str
    limit: int
    reached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Anything else, in the words of who raised it."""

    stage: str
    text: str


Failure = OutOfMemory | VmemOverflow | BadOption | ShardingError | Timeout | MemoryLimit | Other


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One of this package's own errors, raised while the program was built."""

    error: str
    problems: tuple[str, ...]


_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        *(Compiled, Refused, OutOfMemory, VmemOverflow, BadOption),
        *(ShardingError, Timeout, MemoryLimit, Other),
    )
}


def encode(value: Compiled | Failure | Refused) -> bytes:
    """A result as one JSON document."""
    return msgspec.json.encode({"kind": type(value).__name__, "value": value})


def decode(document: bytes) -> Compiled | Failure | Refused:
    """The result in a document that `encode` wrote.

    Raises:
        BadFile: it is no such document.
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
