"""Run counts: how often each computation of a program runs.

For GPUs and CPUs, XLA annotates loops with their trip counts. For TPUs they are derived here: the
scalars on which the loop condition depends are evaluated trip by trip from their initial values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shardwise.check.hlo.text import Computation, Instruction, Module

MAX_TRIPS = 1_000_000  # beyond this a loop counts as unresolved
# Instructions whose callees are scheduled op by op; a fusion runs its callee as one op.
CONTROL_FLOW = ("while", "conditional", "call", "call-start")

Number = int | float | bool
CarryState = dict[int, Number | None]  # index of a loop's carry element -> its value if known

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
_PASS_THROUGH = (
    "copy", "bitcast", "convert", "reshape", "optimization-barrier", "copy-done", "copy-start",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """Run counts of computations in one run of the program.

    Args:
        by_computation: computation -> number of runs, also of computations inside fusions.
        scheduled: computations whose instructions run one by one, entry first.
        unresolved_loops: bodies of loops with an unknown trip count, which are assumed to run once.
        unresolved_branches: branches of conditionals with unknown run counts; each is assumed to
            run every time.
    """

    by_computation: dict[str, int]
    scheduled: tuple[str, ...]
    unresolved_loops: tuple[str, ...]
    unresolved_branches: tuple[str, ...]


def count_runs(
    module: Module, branch_runs: Mapping[str, tuple[int, ...]] | None = None
) -> RunCounts:
    """Count the runs of all computations, from the entry through its callees.

    Args:
        branch_runs: name scope of a `lax.cond`, of a `lax.switch` or of a loop of at most one trip
            -> how often one run of the program takes each of its branches, where the caller knows
            it. The branches of such a loop are no trip, and one.
    """
    counts = dict.fromkeys(module.computations, 0)
    counts[module.entry] = 1
    scheduled = {module.entry: None}
    loops: list[str] = []
    branches: list[str] = []
    for name in _callers_first(module):
        computation = module.computations[name]
        n_runs = counts[name]
        for instruction in computation.instructions.values():
            if instruction.opcode in CONTROL_FLOW and name in scheduled:
                scheduled |= dict.fromkeys(instruction.callees)
            known_runs = _branch_runs(module, computation, instruction, branch_runs or {})
            if known_runs and n_runs:
                for callee, n_taken in known_runs.items():
                    counts[callee] += n_taken
                continue
            if instruction.opcode == "conditional":
                branches += instruction.callees
            n_trips = 1
            condition = ""
            if instruction.opcode == "while":
                condition = instruction.attribute("condition")
                known_trips = trip_count(module, computation, instruction)
                if known_trips is not None:
                    n_trips = known_trips
                elif n_runs:
                    loops.append(instruction.attribute("body"))
            for callee in instruction.callees:
                counts[callee] += n_runs * (n_trips + (callee == condition))
    return RunCounts(
        by_computation=counts,
        scheduled=tuple(scheduled),
        unresolved_loops=tuple(loops),
        unresolved_branches=tuple(dict.fromkeys(branches)),
    )


def branches_of(conditional: Instruction) -> tuple[str, ...]:
    """Computations of a conditional's branches, in the order of their indices.

    A conditional on a predicate names the computation of `true`, index 1, first.
    """
    if conditional.attribute("true_computation"):
        return tuple(reversed(conditional.callees))
    return conditional.callees


def scope_of(instruction: Instruction) -> str:
    """Name scope of a `lax.cond`, a `lax.switch` or a loop."""
    scopes = instruction.op_name.split("/")
    return scopes[-2] if len(scopes) > 1 else ""


def is_optional(module: Module, computation: Computation, instruction: Instruction) -> bool:
    """Whether it is a conditional or a loop whose number of trips depends on data."""
    if instruction.opcode == "while":
        return trip_count(module, computation, instruction) is None
    return instruction.opcode == "conditional"


def _branch_runs(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    branch_runs: Mapping[str, tuple[int, ...]],
) -> dict[str, int]:
    """Run counts of the callees from `branch_runs`; {} if it does not list them."""
    known_runs = branch_runs.get(scope_of(instruction), ())
    if not known_runs or not is_optional(module, computation, instruction):
        return {}
    if instruction.opcode == "while":
        n_trips = sum(i * n for i, n in enumerate(known_runs))
        condition, body = (instruction.attribute(name) for name in ("condition", "body"))
        return {condition: sum(known_runs) + n_trips, body: n_trips}
    if len(known_runs) != len(instruction.callees):
        return {}
    return dict(zip(branches_of(instruction), known_runs, strict=True))


def _callers_first(module: Module) -> Iterator[str]:
    """Names of computations, callers before callees (HLO has no recursion)."""
    visited: dict[str, None] = {}

    def visit(name: str) -> None:
        for instruction in reversed(module.computations[name].instructions.values()):
            for callee in reversed(instruction.callees):
                if callee not in visited:
                    visit(callee)
        visited[name] = None

    visit(module.entry)
    return reversed(visited)


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """The trip count of a `while`, or None if it cannot be derived."""
    annotation = loop.backend_config.get("known_trip_count")
    if isinstance(annotation, dict) and "n" in annotation:
        return int(annotation["n"])
    condition = module.computations[loop.attribute("condition")]
    body = module.loop_body(loop)
    state = _initial_state(module, computation, loop, condition, body)
    if state is None:
        return None
    for trip in range(MAX_TRIPS):
        continues = _scalar_value(module, condition, condition.root, state)
        if continues is None:
            return None
        if not continues:
            return trip
        next_state = {i: _element_value(module, body, body.root, i, state) for i in state}
        if next_state == state:
            return None
        state = next_state
    return None


def _initial_state(
    module: Module,
    computation: Computation,
    loop: Instruction,
    condition: Computation,
    body: Computation,
) -> CarryState | None:
    """Initial values of the carry elements that decide when the loop ends; None if unknown."""
    elements = _elements_read(condition, condition.root, None)
    while True:
        closure = elements.union(*(_elements_read(body, body.root, i) for i in elements))
        if closure == elements:
            break
        elements = closure
    state = {
        i: _element_value(module, computation, loop.operands[0], i, {}) for i in sorted(elements)
    }
    return None if not state or None in state.values() else state


def _elements_read(computation: Computation, name: str, element: int | None) -> set[int]:
    """Indices of the elements of a computation's one parameter on which a value depends.

    The value is the result of an instruction, or one `element` of it if it is a tuple.
    """
    elements: set[int] = set()
    pending: list[tuple[str, int | None]] = [(name, element)]
    visited: set[tuple[str, int | None]] = set()
    while pending:
        value = pending.pop()
        if value in visited:
            continue
        visited.add(value)
        name, element = value
        instruction = computation.instructions[name]
        if instruction.opcode == "parameter":
            if element is not None:
                elements.add(element)
        elif instruction.opcode == "get-tuple-element":
            pending.append((instruction.operands[0], instruction.tuple_index))
        elif instruction.opcode == "tuple" and element is not None:
            pending.append((instruction.operands[element], None))
        else:
            if instruction.opcode not in _PASS_THROUGH:
                element = None
            pending += [(operand, element) for operand in instruction.operands]
    return elements


def _element_value(
    module: Module, computation: Computation, name: str, element: int, state: CarryState
) -> Number | None:
    """The value of a scalar element of a tuple, or None if it is unknown."""
    instruction = computation.instructions[name]
    if instruction.opcode == "tuple":
        return _scalar_value(module, computation, instruction.operands[element], state)
    if instruction.opcode == "parameter":
        return state.get(element)
    if instruction.opcode in _PASS_THROUGH:
        return _element_value(module, computation, instruction.operands[0], element, state)
    if instruction.opcode in ("fusion", "call"):
        callee = module.callee(instruction)
        arguments = _arguments(module, computation, instruction, state)
        return _element_value(module, callee, callee.root, element, arguments)
    return None


def _arguments(
    module: Module, computation: Computation, call: Instruction, state: CarryState
) -> CarryState:
    """Known scalar arguments of a call, by index."""
    values = [_scalar_value(module, computation, operand, state) for operand in call.operands]
    if len(values) == 1 and values[0] is None:
        return state  # the only argument is the whole tuple
    return dict(enumerate(values))


def _scalar_value(
    module: Module, computation: Computation, name: str, state: CarryState
) -> Number | None:
    """The value of a scalar, or None if it is unknown."""
    instruction = computation.instructions[name]
    if len(instruction.shapes) == 1 and instruction.shapes[0].elements != 1:
        return None
    if instruction.opcode == "constant":
        return _parse_constant(instruction.literal)
    if instruction.opcode == "parameter":
        return state.get(int(instruction.literal)) if len(instruction.shapes) == 1 else None
    if instruction.opcode == "get-tuple-element":
        source = instruction.operands[0]
        return _element_value(module, computation, source, instruction.tuple_index, state)
    if instruction.opcode in _PASS_THROUGH:
        return _scalar_value(module, computation, instruction.operands[0], state)
    if instruction.opcode in ("fusion", "call"):
        callee = module.callee(instruction)
        arguments = _arguments(module, computation, instruction, state)
        return _scalar_value(module, callee, callee.root, arguments)
    values = []
    for operand in instruction.operands:
        value = _scalar_value(module, computation, operand, state)
        if value is None:
            return None
        values.append(value)
    return _evaluate(instruction, values)


def _evaluate(instruction: Instruction, values: list[Number]) -> Number | None:
    opcode = instruction.opcode
    if opcode == "compare" and len(values) == 2:
        return _COMPARE[instruction.attribute("direction")](*values)
    if opcode in _BINARY and len(values) == 2:
        return _BINARY[opcode](*values)
    if opcode == "not":
        return not values[0]
    if opcode == "negate":
        return -values[0]
    if opcode == "select":
        return values[1] if values[0] else values[2]
    return None


def _parse_constant(literal: str) -> Number | None:
    if literal in ("true", "false"):
        return literal == "true"
    try:
        return int(literal)
    except ValueError:
        return None
