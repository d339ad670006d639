"""Read a compiled program as XLA prints it: collectives, with mesh axes and bytes, and dots.

Bytes are V of the book, the array summed over the shards that a collective joins, as everywhere in
Shardwise. XLA:CPU never forms a reduce-scatter: it leaves the all-reduce of the partial sums and
slices the result, where a TPU fuses both. Such a pair is read as the reduce-scatter it stands for.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

ELEMENT_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4}
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# What hands on the whole array, in another order or under another name.
SAME = ("copy", "bitcast", "transpose", "reshape", "convert", "get-tuple-element")

_COMPUTATION = re.compile(r"(?:ENTRY )?%(\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%(\S+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*?)\)(?:, (.*))?$")
_SHAPE = re.compile(r"([a-z]+[0-9]*)\[([0-9,]*)\]")
_MESH_GROUPS = re.compile(
    r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{([^:}]*)\}"
)
_IOTA_GROUPS = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LIST = re.compile(r"\{([0-9,]*)\}")

Axes = tuple[str, ...]
Mesh = dict[str, int]


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """Kind, mesh axes, and V in bytes."""

    kind: str
    axes: Axes
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line: `%name = shapes opcode(operands), attributes`."""

    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each array of the result."""
        return tuple(ELEMENT_BYTES[dtype] * math.prod(dims) for dtype, dims in self.shapes)

    def named(self, key: str) -> str:
        """The computation or the list that an attribute names."""
        found = re.search(rf"\b{key}=%?(\{{.*?\}}|[\w.\-]+)", self.attributes)
        return found[1] if found else ""

    def numbers(self, key: str) -> tuple[int, ...]:
        return tuple(int(n) for n in re.findall(r"\d+", self.named(key)))


class Module:
    """A compiled program as text."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, dict[str, Instruction]] = {}
        at: dict[str, Instruction] = {}
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                at = self.computations[match[1]] = {}
            elif match := _INSTRUCTION.match(line):
                one = _instruction(match)
                at[one.name] = one
        opcodes = {one.opcode for one in self.instructions()}
        strange = opcodes & {"while", "custom-call", "conditional", "reduce-scatter-start"}
        if strange or any(o.endswith("-start") for o in opcodes):
            raise AssertionError(f"this reader does not follow {sorted(strange)} and async pairs")

    def instructions(self) -> list[Instruction]:
        return [one for block in self.computations.values() for one in block.values()]

    def dot_flops(self) -> int:
        """2 times the product of the kept and the summed dims, over every dot."""
        total = 0
        for block in self.computations.values():
            for one in block.values():
                if one.opcode == "dot":
                    left = block[one.operands[0]].shapes[0][1]
                    summed = math.prod(left[d] for d in one.numbers("lhs_contracting_dims"))
                    total += 2 * math.prod(one.shapes[0][1]) * summed
        return total

    def collectives(self, mesh: Mesh) -> Counter[Collective]:
        """How often each collective stands in the program."""
        found: Counter[Collective] = Counter()
        for name, block in self.computations.items():
            for one in block.values():
                if one.opcode in COLLECTIVES:
                    found.update(self._read(name, one, mesh))
        return found

    def _read(self, block: str, one: Instruction, mesh: Mesh) -> list[Collective]:
        kind = one.opcode.replace("-", "_")
        if kind == "collective_permute":
            return [Collective("permute", (), n) for n in one.sizes]
        axes = mesh_axes(one.attributes, mesh)
        n = math.prod(mesh[a] for a in axes)
        if kind == "all_to_all":
            return [Collective(kind, axes, sum(one.sizes) * n)]
        if kind == "reduce_scatter":
            return [Collective(kind, axes, size * n) for size in one.sizes]
        if kind == "all_gather":
            return [Collective(kind, axes, size) for size in one.sizes]
        return [self._reduction(block, one, i, axes, mesh) for i in range(len(one.sizes))]

    def _reduction(
        self, block: str, one: Instruction, i: int, axes: Axes, mesh: Mesh
    ) -> Collective:
        """An all-reduce, or the reduce-scatter that it stands for when only a shard is read."""
        size = one.sizes[i]
        kept = self._sliced(block, one.name, i if len(one.sizes) > 1 else None)
        if kept is not None and kept * math.prod(mesh[a] for a in axes) == size:
            return Collective("reduce_scatter", axes, size)
        return Collective("all_reduce", axes, size)

    def _sliced(self, block: str, name: str, element: int | None) -> int | None:
        """Bytes of the slices when all that read an array slice it alike, else None."""
        found: set[int | None] = set()
        if self.computations[block][name].root:
            return None
        for user in self.computations[block].values():
            if name not in user.operands:
                continue
            if element is not None and user.opcode == "get-tuple-element":
                if user.numbers("index") == (element,):
                    found.add(self._sliced(block, user.name, None))
            elif user.opcode == "dynamic-slice" and name not in user.operands[1:]:
                found.add(sum(user.sizes))
            elif user.opcode in SAME:
                found.add(self._sliced(block, user.name, None))
            elif user.opcode == "fusion":
                found.update(self._sliced_inside(user, name))
            else:
                found.add(None)
        return found.pop() if len(found) == 1 else None

    def _sliced_inside(self, fusion: Instruction, name: str) -> set[int | None]:
        inner = fusion.named("calls")
        places = [str(i) for i, operand in enumerate(fusion.operands) if operand == name]
        return {
            self._sliced(inner, one.name, None)
            for one in self.computations[inner].values()
            if one.opcode == "parameter" and one.operands[0] in places
        }


def _instruction(match: re.Match[str]) -> Instruction:
    shapes = tuple(
        (dtype, tuple(int(n) for n in dims.split(",") if n))
        for dtype, dims in _SHAPE.findall(match[3])
    )
    operands = tuple(part.strip().lstrip("%") for part in match[5].split(","))
    return Instruction(match[2], shapes, match[4], operands, match[6] or "", bool(match[1]))


def mesh_axes(attributes: str, mesh: Mesh) -> Axes:
    """The axes of `mesh` whose groups of devices are those of a collective."""
    wanted = groups(attributes, math.prod(mesh.values()))
    devices = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    for count in range(1, len(mesh) + 1):
        for axes in itertools.combinations(mesh, count):
            if _split(devices, [list(mesh).index(a) for a in axes]) == wanted:
                return axes
    raise AssertionError(f"groups of no mesh axes: {attributes}")


def groups(attributes: str, n_devices: int) -> set[frozenset[int]]:
    """Replica groups from any of the ways in which XLA writes them."""
    text = attributes.split("replica_groups=", 1)[1]
    if match := _MESH_GROUPS.match(text):
        sizes, shape, turn, chosen = match.groups()
        names = re.findall(r"'(\w+)'=", sizes)
        lengths = [int(n) for n in re.findall(r"=(\d+)", sizes)]
        devices = _ordered(n_devices, shape, turn).reshape(lengths)
        return _split(devices, [names.index(c) for c in re.findall(r"'(\w+)'", chosen)])
    if match := _IOTA_GROUPS.match(text):
        shape, order, turn = match.groups()
        devices = _ordered(n_devices, order, turn)
        return set(map(frozenset, devices.reshape([int(n) for n in shape.split(",")]).tolist()))
    if not text.startswith("{"):
        raise AssertionError(f"this reader does not know {text[:80]}")
    listed = re.match(r"\{(\{.*?\})?\}", text)[1]
    if not listed:
        return {frozenset(range(n_devices))}
    return {frozenset(int(n) for n in g.split(",")) for g in _LIST.findall(listed)}


def _ordered(n_devices: int, shape: str | None, turn: str | None) -> np.ndarray:
    """Devices in the order `[2,4]T(1,0)`."""
    devices = np.arange(n_devices)
    if shape:
        devices = devices.reshape([int(n) for n in shape.split(",")])
    return devices.transpose([int(n) for n in turn.split(",")]) if turn else devices


def _split(devices: np.ndarray, axes: list[int]) -> set[frozenset[int]]:
    """Groups of devices that differ along `axes` only."""
    size = math.prod(devices.shape[a] for a in axes)
    last = np.moveaxis(devices, axes, range(-len(axes), 0)).reshape(-1, size)
    return set(map(frozenset, last.tolist()))
