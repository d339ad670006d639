"""The peak of a compiled program's memory, and what it is made of, in the words of a model.

Live ranges are followed over the schedule of the entry; a loop adds the peak of its body where it
runs. The sum is what the buffers need at once, in whole tiles. It leaves out what an allocator
loses between them, and memory outside the program's arrays; and it cannot see every buffer that
the compiler has two results share.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwise.check.hlo.buffers import Buffer, assign
from shardwise.check.hlo.carried import Carried, carried, source
from shardwise.check.hlo.loops import Runs, runs
from shardwise.check.hlo.scopes import scope
from shardwise.check.hlo.shape import Shape
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.hlo.traffic import held

CATEGORIES = (
    "arguments",
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "gathered weights",
    "logits",
    "temporaries",
)
_HAND_ON = ("bitcast", "copy", "get-tuple-element", "convert", "reshape", "transpose", "tuple")
_CUT = (*_HAND_ON, "dynamic-slice", "slice", "fusion", "copy-start", "copy-done", "slice-start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One array that is held at the peak.

    Args:
        scope: the planned operation that made it, "" when it is none.
        category: one of `CATEGORIES`; `activations` are what a loop over layers keeps for the
            backward pass, `gathered weights` what a gather makes of an argument.
    """

    bytes: int
    shape: Shape
    instruction: str
    op_name: str
    scope: str
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which most memory is held.

    Args:
        bytes: of everything in HBM then, arguments included.
        arguments: bytes of the program's arguments, which are held throughout.
        computation, at: the instruction that runs then.
        buffers: all that is held, largest first.
    """

    bytes: int
    arguments: int
    computation: str
    at: str
    buffers: tuple[Held, ...]

    def by_category(self) -> dict[str, int]:
        """Bytes of each category that is there, largest first."""
        total: dict[str, int] = {}
        for each in self.buffers:
            total[each.category] = total.get(each.category, 0) + each.bytes
        return dict(sorted(total.items(), key=lambda pair: -pair[1]))


@dataclass(frozen=True, slots=True)
class _Moment:
    """Bytes that a computation adds at its worst, where, and in which buffers."""

    bytes: int
    computation: str
    at: str
    buffers: tuple[tuple[Computation, Buffer], ...]


def peak(
    module: Module,
    arguments: Callable[[Instruction], str] | None = None,
    counted: Runs | None = None,
) -> Peak:
    """The peak over the whole schedule.

    Args:
        arguments: the category of a parameter of the program (weights, optimizer, ...); without
            it all of them are `arguments`.
        counted: `loops.runs(module)` where the caller has it already.
    """
    counted = counted or runs(module)
    callers = {
        one.word("body"): (block, one)
        for block in module.computations.values()
        for one in block.instructions.values()
        if one.opcode == "while"
    }
    moment = _moment(module, module.entry, set(callers), {})
    sorts = _Sorts(module, counted, callers)
    given = [(one, shape) for one in module.main.parameters for shape in one.shapes]
    buffers = [
        Held(
            bytes=held(module, shape),
            shape=shape,
            instruction=one.name,
            op_name=one.op_name,
            scope="",
            category=arguments(one) if arguments else "arguments",
        )
        for one, shape in given
    ]
    n_arguments = sum(each.bytes for each in buffers)
    for block, buffer in moment.buffers:
        path = sorts.path(block, buffer)
        buffers.append(
            Held(
                bytes=buffer.bytes,
                shape=buffer.shape,
                instruction=buffer.maker.name,
                op_name=path,
                scope=scope(path)[0],
                category=sorts.of(block, buffer),
            )
        )
    return Peak(
        bytes=n_arguments + moment.bytes,
        arguments=n_arguments,
        computation=moment.computation,
        at=moment.at,
        buffers=tuple(sorted(buffers, key=lambda each: -each.bytes)),
    )


def _moment(module: Module, name: str, bodies: set[str], known: dict[str, _Moment]) -> _Moment:
    """The worst moment of one computation, with those of what it calls."""
    if name in known:
        return known[name]
    block = module.computations[name]
    own = assign(module, block, loops=name in bodies).own
    instructions = list(block.instructions.values())
    inside = [_inside(module, one, bodies, known) for one in instructions]
    changes = [0] * (len(instructions) + 2)
    for buffer in own:
        changes[buffer.first] += buffer.bytes
        changes[buffer.last + 1] -= buffer.bytes
    live = list(itertools.accumulate(changes))
    total = [live[i] + (each.bytes if each else 0) for i, each in enumerate(inside)]
    worst = max(range(len(total)), key=total.__getitem__)
    mine = tuple((block, b) for b in own if b.first <= worst <= b.last)
    deeper = inside[worst]
    known[name] = _Moment(
        total[worst],
        deeper.computation if deeper else name,
        deeper.at if deeper else instructions[worst].name,
        mine + (deeper.buffers if deeper else ()),
    )
    return known[name]


def _inside(
    module: Module, one: Instruction, bodies: set[str], known: dict[str, _Moment]
) -> _Moment | None:
    """The worst of the computations that an instruction runs op by op."""
    if one.opcode not in ("while", "conditional", "call"):
        return None
    found = [_moment(module, name, bodies, known) for name in one.called]
    worst = max(found, key=lambda each: each.bytes)
    return worst if worst.bytes else None


class _Sorts:
    """What a buffer is to the model, read off its shape, its maker, and where that stands."""

    def __init__(
        self,
        module: Module,
        counted: Runs,
        callers: Mapping[str, tuple[Computation, Instruction]],
    ) -> None:
        self.module = module
        self.callers = callers
        shapes = [s for one in module.main.parameters for s in one.shapes if len(s.dims) > 1]
        self.arguments = {tuple(d for d in s.dims if d > 1) for s in shapes}
        self.layers = {s.dims[1:] for s in shapes if len(s.dims) > 2}
        self.trips = {counted.count[body] for body in callers}
        self.carried = carried(module)

    def path(self, block: Computation, buffer: Buffer) -> str:
        """Names of what makes it: of a copy what it copies, of what a loop fills what it writes."""
        found = self._filled(block, buffer)
        return found.path if found.path else source(block, buffer.maker).op_name

    def _filled(self, block: Computation, buffer: Buffer) -> Carried:
        return self.carried.get((block.name, buffer.maker.name), Carried("", ""))

    def of(self, block: Computation, buffer: Buffer) -> str:
        one, path = source(block, buffer.maker), self.path(block, buffer)
        name, phase = scope(path)
        filled = self._filled(block, buffer).category
        if filled:
            return filled
        dims = tuple(d for d in buffer.shape.dims if d > 1)
        if self._gathers(one):
            return (
                "gathered weights" if self._of_argument(block, one.operands[0]) else "temporaries"
            )
        like_weight = dims in self.arguments or buffer.shape.dims in self.layers
        if like_weight and (phase in ("backward", "update") or "transpose(" in path):
            return "gradients"
        stacked = len(dims) > 2 and buffer.shape.dims[0] in self.trips
        if stacked and block.name not in self.callers and not like_weight:
            return "activations"
        if name in ("unembed", "loss") and not like_weight:
            return "logits"
        return "temporaries"

    def _gathers(self, one: Instruction) -> bool:
        if one.opcode == "fusion":
            inner = self.module.computations[one.called[0]]
            return any(i.opcode.startswith("all-gather") for i in inner.instructions.values())
        if one.opcode in ("async-start", "call-start"):
            inner = self.module.computations[one.called[0]]
            return any(i.opcode == "all-gather" for i in inner.instructions.values())
        return one.opcode.startswith("all-gather")

    def _of_argument(self, block: Computation, name: str) -> bool:
        """Whether an array is an argument, or a slice of one that loops only read."""
        while True:
            one = block.instructions[name]
            source = block.instructions[one.operands[0]] if one.operands else one
            if one.opcode == "get-tuple-element" and source.opcode == "parameter":
                given = self._given(block, one)
                if given is None:
                    return False
                block, name = given
            elif one.opcode == "parameter":
                return block.name == self.module.entry
            elif one.opcode not in _CUT or not one.operands:
                return False
            else:
                name = one.operands[0]

    def _given(self, body: Computation, element: Instruction) -> tuple[Computation, str] | None:
        """What the caller of a loop put where its body finds an element that it never changes."""
        if body.name not in self.callers or not _unchanged(body, element):
            return None
        caller, loop = self.callers[body.name]
        carry = caller.instructions[loop.operands[0]]
        if carry.opcode != "tuple":
            return None
        return caller, carry.operands[element.numbers("index")[0]]


def _unchanged(body: Computation, element: Instruction) -> bool:
    """Whether a loop hands one element of its carry on as it came."""
    root = body.instructions[body.root]
    index = element.numbers("index")[0]
    if root.opcode != "tuple" or index >= len(root.operands):
        return False
    last = body.instructions[root.operands[index]]
    return last.opcode == "get-tuple-element" and last.numbers("index") == (index,)
