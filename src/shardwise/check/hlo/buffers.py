"""Which results of a computation share memory, and from when to when each buffer is held.

A result is a new buffer unless the program says otherwise: tuples, bitcasts and the ends of
asynchronous pairs only name one; a loop keeps its carry in place; an update in place, a donated
argument, and what an instruction states as aliased take an old buffer over. An elementwise result
takes over an operand that nobody reads again where the compiler allows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.check.hlo.costs import ELEMENTWISE
from shardwise.check.hlo.shape import Shape
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.hlo.traffic import held

SHARE = ("bitcast", "optimization-barrier", "add-dependency", "domain", "while")
Value = list[list[int]]  # elements of a tuple -> buffers of their arrays


@dataclass(slots=True)
class Buffer:
    """Memory of one array: its bytes, who made it, and its live range in the schedule."""

    maker: Instruction
    shape: Shape
    bytes: int
    first: int
    last: int
    outside: bool = False
    taken_by: int | None = None


@dataclass(slots=True)
class Block:
    """The buffers of one computation; those of its parameters belong to whoever calls it."""

    computation: Computation
    values: dict[str, Value] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)

    def find(self, i: int) -> int:
        """The buffer that has taken over buffer i, or i."""
        while (other := self.buffers[i].taken_by) is not None:
            i = other
        return i

    def join(self, i: int, j: int) -> None:
        """Buffer j lives on in buffer i."""
        i, j = self.find(i), self.find(j)
        if i == j:
            return
        keep, gone = self.buffers[i], self.buffers[j]
        gone.taken_by = i
        keep.first = min(keep.first, gone.first)
        keep.last = max(keep.last, gone.last)
        keep.outside = keep.outside or gone.outside
        if gone.bytes > keep.bytes:
            keep.bytes, keep.shape, keep.maker = gone.bytes, gone.shape, gone.maker

    @property
    def own(self) -> list[Buffer]:
        """Buffers that this computation adds while it runs."""
        return [b for b in self.buffers if b.taken_by is None and not b.outside and b.bytes]


def assign(module: Module, block: Computation, loops: bool) -> Block:
    """Buffers and live ranges of one computation.

    Args:
        loops: it is the body of a loop, whose result takes the place of its parameter; else its
            result belongs to the caller, but for the entry, whose result is its own.
    """
    made = Block(block)
    position = {name: i for i, name in enumerate(block.instructions)}
    done = {
        user.operands[0]: user
        for user in block.instructions.values()
        if user.opcode.endswith("-done") and user.operands
    }
    for one in block.instructions.values():
        made.values[one.name] = _value(module, made, one, position[one.name], done.get(one.name))
    _ranges(made, position, done)
    _results(module, made, loops, len(position))
    for one in block.instructions.values():
        _reuse(module, made, one, position[one.name])
    return made


def _new(
    module: Module, made: Block, one: Instruction, shapes: tuple[Shape, ...], at: int
) -> Value:
    value = []
    for shape in shapes:
        outside = one.opcode == "parameter"
        made.buffers.append(Buffer(one, shape, held(module, shape), at, at, outside))
        value.append([len(made.buffers) - 1])
    return value


def _value(
    module: Module, made: Block, one: Instruction, at: int, done: Instruction | None
) -> Value:
    """Buffers of a result: old ones where it only names them."""
    if one.opcode in SHARE:
        return made.values[one.operands[0]]
    if one.opcode == "tuple":
        return [[b for element in made.values[o] for b in element] for o in one.operands]
    if one.opcode == "get-tuple-element":
        whole = made.values[one.operands[0]]
        index = one.numbers("index")[0]
        return [[b] for b in whole[index]] if index < len(whole) else []
    if one.opcode.endswith(("-done", "-update")) and one.operands:
        return made.values[one.operands[0]]
    if one.opcode == "dynamic-update-slice":
        return made.values[one.operands[0]]
    if done is not None:
        return _new(module, made, one, done.shapes, at)
    value = _new(module, made, one, one.shapes, at)
    if one.opcode in ("fusion", "custom-call"):
        for element, operand in _aliased(module, one):
            old = [b for part in made.values[one.operands[operand]] for b in part]
            if element < len(value) and old:
                made.join(old[0], value[element][0])
    return value


def _aliased(module: Module, one: Instruction) -> list[tuple[int, int]]:
    """(element of the result, operand whose buffer it takes over)."""
    found = []
    text = one.attributes.partition("output_to_operand_aliasing={")[2].partition("})}")[0]
    for part in filter(None, text.split("{")):
        element, _, rest = part.partition("}: (")
        if rest:
            found.append((int(element or 0), int(rest.split(",")[0])))
    if one.opcode == "fusion":
        inner = module.computations[one.called[0]]
        root = inner.instructions[inner.root]
        names = root.operands if root.opcode == "tuple" else (root.name,)
        for i, name in enumerate(names):
            parameter = _updated(module, inner, name)
            if parameter is not None and all(i != element for element, _ in found):
                found.append((i, parameter))
    return found


def _updated(module: Module, inner: Computation, name: str) -> int | None:
    """The parameter of a fusion of which a result is an update in place."""
    one = inner.instructions[name]
    if one.opcode == "bitcast":
        return _updated(module, inner, one.operands[0])
    if one.opcode == "fusion":
        deeper = module.computations[one.called[0]]
        at = _updated(module, deeper, deeper.root)
        return None if at is None else _parameter(inner, one.operands[at])
    if one.opcode == "dynamic-update-slice":
        return _parameter(inner, one.operands[0])
    return None


def _parameter(inner: Computation, name: str) -> int | None:
    one = inner.instructions[name]
    if one.opcode == "bitcast":
        return _parameter(inner, one.operands[0])
    return int(one.literal) if one.opcode == "parameter" else None


def _ranges(made: Block, position: dict[str, int], done: dict[str, Instruction]) -> None:
    """Each buffer is held to its last reader; what a pair reads, to the end of the pair."""
    for one in made.computation.instructions.values():
        if one.opcode in ("tuple", "get-tuple-element", "bitcast"):
            continue
        end = done.get(one.name, one)
        for operand in one.operands:
            for element in made.values[operand]:
                for b in element:
                    made.buffers[b].last = max(made.buffers[b].last, position[end.name])


def _results(module: Module, made: Block, loops: bool, end: int) -> None:
    """The result: in the place of the carry, of donated arguments, or the caller's."""
    root = made.values[made.computation.root]
    if made.computation.name == module.entry:
        for element, number in module.aliases:
            argument = made.values[made.computation.parameters[number].name]
            for b in root[element] if element < len(root) else []:
                made.join(argument[0][0], b)
        for element_buffers in root:
            for b in element_buffers:  # the caller sets the room for results aside at the start
                result = made.buffers[made.find(b)]
                result.first, result.last = 0, end
        return
    carry = made.values[made.computation.parameters[0].name] if loops else []
    for i, element_buffers in enumerate(root):
        for j, b in enumerate(element_buffers):
            if loops and i < len(carry) and j < len(carry[i]):
                made.join(carry[i][j], b)
            made.buffers[made.find(b)].outside = True


def _reuse(module: Module, made: Block, one: Instruction, at: int) -> None:
    """A result takes over an operand of the same size that ends here, where it may."""
    if len(one.shapes) != 1 or one.opcode in ("parameter", "constant"):
        return
    (element,) = made.values[one.name][:1] or [[]]
    if len(element) != 1:
        return
    mine = made.find(element[0])
    if made.buffers[mine].first != at or made.buffers[mine].outside:
        return
    for operand in _may_share(module, one):
        for part in made.values[operand]:
            for b in part:
                old = made.buffers[made.find(b)]
                fits = old.bytes >= made.buffers[mine].bytes > 0
                if fits and old.last == at and not old.outside and old.first < at:
                    made.join(b, mine)
                    return


def _may_share(module: Module, one: Instruction) -> list[str]:
    """Operands that a result may overwrite: TPU programs state them; else those that it only
    reads element by element."""
    stated = one.backend.get("aliasing_operands")
    if isinstance(stated, dict):
        n = len(one.operands)
        pairs = [[int(i) for i in each["indices"]] for each in stated.get("lists", [])]
        return [one.operands[i] for pair in pairs if n in pair for i in pair if i < n]
    if one.opcode == "fusion":
        inner = module.computations[one.called[0]]
        given = zip(inner.parameters, one.operands, strict=True)
        return [operand for p, operand in given if _element_by_element(inner, p)]
    return list(one.operands) if one.opcode in ELEMENTWISE else []


def _element_by_element(inner: Computation, one: Instruction) -> bool:
    """Whether each element of a result depends on the same element of this value only."""
    users = [user for user in inner.instructions.values() if one.name in user.operands]
    return all(
        user.opcode in (*ELEMENTWISE, "bitcast")
        and user.shapes[0].elements == one.shapes[0].elements
        and _element_by_element(inner, user)
        for user in users
    )
