"""How often each computation of a program runs.

XLA writes the trip count beside a loop for GPUs and CPUs. For TPUs it has to be worked out: the
few scalars that the condition reads are followed from their first values, trip by trip.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shardwise.check.hlo.text import Computation, Instruction, Module

MOST_TRIPS = 1_000_000  # beyond this a loop counts as unresolved
# Instructions whose computations are scheduled op by op; a fusion or a wrapped op runs as one.
RUNS_INSIDE = ("while", "conditional", "call", "call-start")

Number = int | float | bool
_BINARY: dict[str, Callable[[Number, Number], Number]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": max,
    "minimum": min,
    "and": lambda a, b: int(a) & int(b),
    "or": lambda a, b: int(a) | int(b),
}
_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}
_SAME = ("copy", "bitcast", "convert", "reshape", "optimization-barrier", "copy-done", "copy-start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """How often computations run in one run of the program.

    Args:
        count: computation -> runs; the bodies of fusions too.
        scheduled: computations whose instructions run one by one, entry first.
        unresolved: bodies of loops whose trip count could not be found; `count` has them, and
            what they call, as often as if the loop ran once.
        branches: sides of conditionals that nobody knows how often are taken; `count` has each as
            if it always were.
    """

    count: dict[str, int]
    scheduled: tuple[str, ...]
    unresolved: tuple[str, ...]
    branches: tuple[str, ...]


def runs(module: Module, taken: Mapping[str, tuple[int, ...]] | None = None) -> Runs:
    """Follow the calls from the entry.

    Args:
        module: the program.
        taken: name scope of a `lax.cond` or `lax.switch` -> how often one run of the program takes
            each of its sides, where the caller knows.
    """
    count = dict.fromkeys(module.computations, 0)
    count[module.entry] = 1
    scheduled = [module.entry]
    unresolved: list[str] = []
    branches: list[str] = []
    for name in _callers_first(module):
        block = module.computations[name]
        for one in block.instructions.values():
            times = 1
            if one.opcode == "while":
                found = trips(module, block, one)
                times = 1 if found is None else found
                unresolved += [one.word("body")] if found is None and count[name] else []
            sides = _sides(one, taken or {}) if count[name] else None
            if sides:
                for called, n in zip(one.called, sides, strict=True):
                    count[called] += n
            elif one.opcode == "conditional":
                branches += one.called
            for called in one.called:
                extra = one.opcode == "while" and called == one.word("condition")
                count[called] += 0 if sides else count[name] * (times + extra)
                inside = one.opcode in RUNS_INSIDE and name in scheduled
                if inside and called not in scheduled:
                    scheduled.append(called)
    return Runs(
        count=count,
        scheduled=tuple(scheduled),
        unresolved=tuple(unresolved),
        branches=tuple(dict.fromkeys(branches)),
    )


def _sides(one: Instruction, taken: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """How often each side of a conditional is taken, if its name scope is known."""
    scopes = one.op_name.split("/")
    if one.opcode != "conditional" or len(scopes) < 2:
        return None
    found = taken.get(scopes[-2])
    return found if found and len(found) == len(one.called) else None


def _callers_first(module: Module) -> Iterator[str]:
    """Computations so that each comes after all that call it: a program has no recursion."""
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        for one in reversed(module.computations[name].instructions.values()):
            for called in reversed(one.called):
                if called not in done:
                    visit(called)
        done[name] = None

    visit(module.entry)
    return reversed(done)


def trips(module: Module, block: Computation, loop: Instruction) -> int | None:
    """How often the body of a `while` runs, or None."""
    known = loop.backend.get("known_trip_count")
    if isinstance(known, dict) and "n" in known:
        return int(known["n"])
    condition = module.computations[loop.word("condition")]
    body = module.computations[loop.word("body")]
    state = _first_values(module, block, loop, condition, body)
    if state is None:
        return None
    for trip in range(MOST_TRIPS):
        goes_on = _scalar(module, condition, condition.root, state)
        if goes_on is None:
            return None
        if not goes_on:
            return trip
        after = {i: _element(module, body, body.root, i, state) for i in state}
        if after == state:
            return None
        state = after
    return None


State = dict[int, Number | None]


def _first_values(
    module: Module,
    block: Computation,
    loop: Instruction,
    condition: Computation,
    body: Computation,
) -> State | None:
    """First values of the elements of the carry that decide when the loop ends."""
    wanted: set[int] = set()
    _reads(module, condition, condition.root, None, wanted)
    while True:
        more = set(wanted)
        for i in wanted:
            _reads(module, body, body.root, i, more)
        if more == wanted:
            break
        wanted = more
    state = {i: _element(module, block, loop.operands[0], i, {}) for i in sorted(wanted)}
    return None if not state or None in state.values() else state


def _reads(
    module: Module, block: Computation, name: str, element: int | None, found: set[int]
) -> None:
    """Elements of the computation's one parameter that a value is made of."""
    todo: list[tuple[str, int | None]] = [(name, element)]
    seen: set[tuple[str, int | None]] = set()
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        one = block.instructions[at[0]]
        if one.opcode == "parameter":
            found.update([] if at[1] is None else [at[1]])
        elif one.opcode == "get-tuple-element":
            todo.append((one.operands[0], one.numbers("index")[0]))
        elif one.opcode == "tuple" and at[1] is not None:
            todo.append((one.operands[at[1]], None))
        else:
            todo += [(operand, at[1] if one.opcode in _SAME else None) for operand in one.operands]


def _element(
    module: Module, block: Computation, name: str, element: int, state: State
) -> Number | None:
    """The scalar that is one element of a tuple."""
    one = block.instructions[name]
    if one.opcode == "tuple":
        return _scalar(module, block, one.operands[element], state)
    if one.opcode == "parameter":
        return state.get(element)
    if one.opcode in _SAME:
        return _element(module, block, one.operands[0], element, state)
    if one.opcode in ("fusion", "call"):
        inner = module.computations[one.called[0]]
        return _element(module, inner, inner.root, element, _given(module, block, one, state))
    return None


def _given(module: Module, block: Computation, one: Instruction, state: State) -> State:
    """Values of the parameters of a called computation."""
    values = [_scalar(module, block, operand, state) for operand in one.operands]
    if len(values) == 1 and values[0] is None:
        return state  # a tuple handed on whole
    return dict(enumerate(values))


def _scalar(module: Module, block: Computation, name: str, state: State) -> Number | None:
    """The value of a scalar, or None."""
    one = block.instructions[name]
    if len(one.shapes) == 1 and one.shapes[0].elements != 1:
        return None
    if one.opcode == "constant":
        return _constant(one.literal)
    if one.opcode == "parameter":
        return state.get(int(one.literal)) if len(one.shapes) == 1 else None
    if one.opcode == "get-tuple-element":
        return _element(module, block, one.operands[0], one.numbers("index")[0], state)
    if one.opcode in _SAME:
        return _scalar(module, block, one.operands[0], state)
    if one.opcode in ("fusion", "call"):
        inner = module.computations[one.called[0]]
        return _scalar(module, inner, inner.root, _given(module, block, one, state))
    values = [_scalar(module, block, operand, state) for operand in one.operands]
    if any(value is None for value in values):
        return None
    return _apply(one, [value for value in values if value is not None])


def _apply(one: Instruction, values: list[Number]) -> Number | None:
    if one.opcode == "compare" and len(values) == 2:
        return _COMPARE[one.word("direction")](*values)
    if one.opcode in _BINARY and len(values) == 2:
        return _BINARY[one.opcode](*values)
    if one.opcode == "not":
        return not values[0]
    if one.opcode == "negate":
        return -values[0]
    if one.opcode == "select":
        return values[1] if values[0] else values[2]
    return None


def _constant(literal: str) -> Number | None:
    if literal in ("true", "false"):
        return literal == "true"
    try:
        return int(literal)
    except ValueError:
        return None
