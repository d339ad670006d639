"""Peak memory of a compiled program, and the arrays that are live at the peak, by category.

The live buffers of the entry computation are added up at each instruction of the schedule, in whole
tiles; a loop adds the peak of its body. The sum excludes fragmentation and memory other than
arrays, and it may count two buffers where the compiler shares one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwise.check.hlo.buffers import ArrayBuffer, assign_buffers
from shardwise.check.hlo.loop_carry import CarryElement, carry_elements, view_source
from shardwise.check.hlo.loops import RunCounts, count_runs
from shardwise.check.hlo.scopes import scope
from shardwise.check.hlo.shape import Shape
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.hlo.traffic import padded_hbm_bytes

CATEGORIES = (
    "arguments", "weights", "gradients", "optimizer", "activations", "gathered weights", "logits",
    "temporaries",
)  # fmt: skip
_PASS_THROUGH = ("bitcast", "copy", "get-tuple-element", "convert", "reshape", "transpose", "tuple")
_SLICES = ("dynamic-slice", "slice", "fusion", "copy-start", "copy-done", "slice-start")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArray:
    """An array that is live at the peak.

    Args:
        bytes: size in HBM, in whole tiles.
        instruction: name of the instruction that produces it.
        op_name: the path of scopes under which the traced program created it.
        scope: the planned operation that produces it; "" if it belongs to none.
        category: one of `CATEGORIES`. `activations` are saved for the backward pass, which reads
            them last; `gathered weights` are results of all-gathers of arguments.
    """

    bytes: int
    shape: Shape
    instruction: str
    op_name: str
    scope: str
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which most memory is live.

    Args:
        bytes: bytes of all live arrays in HBM, arguments included.
        arguments: bytes of the program's arguments, which are live throughout.
        computation, instruction: names of the instruction that runs then and of its computation.
        arrays: all live arrays, largest first.
    """

    bytes: int
    arguments: int
    computation: str
    instruction: str
    arrays: tuple[LiveArray, ...]

    def by_category(self) -> dict[str, int]:
        """Bytes of each category that is present, largest first."""
        totals: dict[str, int] = {}
        for array in self.arrays:
            totals[array.category] = totals.get(array.category, 0) + array.bytes
        return dict(sorted(totals.items(), key=lambda pair: -pair[1]))


@dataclass(frozen=True, slots=True)
class _LocalPeak:
    """The peak of the buffers that a computation and its callees add to those of its caller.

    Args:
        computation, instruction: names of the innermost instruction that runs at the peak.
        buffers: the buffers that are live then, each with its computation.
    """

    bytes: int
    computation: str
    instruction: str
    buffers: tuple[tuple[Computation, ArrayBuffer], ...]


def memory_peak(
    module: Module,
    argument_category: Callable[[Instruction], str] | None = None,
    run_counts: RunCounts | None = None,
) -> Peak:
    """The peak over the whole schedule.

    Args:
        argument_category: returns the category of a parameter of the program, such as weights or
            optimizer; by default every parameter has the category `arguments`.
        run_counts: `loops.count_runs(module)`, if the caller has it already.
    """
    run_counts = run_counts or count_runs(module)
    loops = {}
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            if instruction.opcode == "while":
                loops[instruction.attribute("body")] = (computation, instruction)
    local_peak = _local_peak(module, module.entry, set(loops), {})
    arrays = []
    for parameter in module.entry_computation.parameters:
        category = argument_category(parameter) if argument_category else "arguments"
        for shape in parameter.shapes:
            arrays.append(
                LiveArray(
                    bytes=padded_hbm_bytes(module, (shape,)),
                    shape=shape,
                    instruction=parameter.name,
                    op_name=parameter.op_name,
                    scope="",
                    category=category,
                )
            )
    argument_bytes = sum(array.bytes for array in arrays)
    categories = _Categories(module, run_counts, loops)
    for computation, buffer in local_peak.buffers:
        op_name = categories.op_name(computation, buffer)
        arrays.append(
            LiveArray(
                bytes=buffer.bytes,
                shape=buffer.shape,
                instruction=buffer.producer.name,
                op_name=op_name,
                scope=scope(op_name)[0],
                category=categories.category(computation, buffer),
            )
        )
    return Peak(
        bytes=argument_bytes + local_peak.bytes,
        arguments=argument_bytes,
        computation=local_peak.computation,
        instruction=local_peak.instruction,
        arrays=tuple(sorted(arrays, key=lambda array: -array.bytes)),
    )


def _local_peak(
    module: Module, name: str, loop_bodies: set[str], cache: dict[str, _LocalPeak]
) -> _LocalPeak:
    """The peak of one computation, including the computations that it calls."""
    if name in cache:
        return cache[name]
    computation = module.computations[name]
    buffers = assign_buffers(module, computation, is_loop_body=name in loop_bodies).local_buffers
    instructions = list(computation.instructions.values())
    changes = [0] * (len(instructions) + 2)
    for buffer in buffers:
        changes[buffer.first] += buffer.bytes
        changes[buffer.last + 1] -= buffer.bytes
    totals = list(itertools.accumulate(changes))
    callee_peaks = {}
    for position, instruction in enumerate(instructions):
        callee_peak = _callee_peak(module, instruction, loop_bodies, cache)
        if callee_peak:
            callee_peaks[position] = callee_peak
            totals[position] += callee_peak.bytes
    peak_position = max(range(len(instructions)), key=totals.__getitem__)
    live = tuple((computation, b) for b in buffers if b.first <= peak_position <= b.last)
    inner_peak = callee_peaks.get(peak_position)
    if inner_peak is None:
        inner_peak = _LocalPeak(0, name, instructions[peak_position].name, ())
    cache[name] = _LocalPeak(
        bytes=totals[peak_position],
        computation=inner_peak.computation,
        instruction=inner_peak.instruction,
        buffers=live + inner_peak.buffers,
    )
    return cache[name]


def _callee_peak(
    module: Module, instruction: Instruction, loop_bodies: set[str], cache: dict[str, _LocalPeak]
) -> _LocalPeak | None:
    """The largest peak among the computations that an instruction runs op by op."""
    if instruction.opcode not in ("while", "conditional", "call"):
        return None
    peaks = [_local_peak(module, name, loop_bodies, cache) for name in instruction.callees]
    largest = max(peaks, key=lambda peak: peak.bytes)
    return largest if largest.bytes else None


class _Categories:
    """Assigns categories to buffers, from their shapes, producers and computations.

    Args:
        loops: loop body -> the `while` instruction that runs it, with its computation.
    """

    def __init__(
        self,
        module: Module,
        run_counts: RunCounts,
        loops: Mapping[str, tuple[Computation, Instruction]],
    ) -> None:
        self.module = module
        self.loops = loops
        self.argument_dims: set[tuple[int, ...]] = set()
        self.layer_dims: set[tuple[int, ...]] = set()
        for parameter in module.entry_computation.parameters:
            for shape in parameter.shapes:
                if len(shape.dims) > 1:
                    self.argument_dims.add(_without_ones(shape))
                if len(shape.dims) > 2:
                    self.layer_dims.add(shape.dims[1:])
        self.trip_counts = {run_counts.by_computation[body] for body in loops}
        self.carry_elements = carry_elements(module)
        self.schedules: dict[str, tuple[Instruction, ...]] = {}

    def op_name(self, computation: Computation, buffer: ArrayBuffer) -> str:
        """Op name of the array itself, not of a copy or of the loop carry that it is written to."""
        element = self._carry_element(computation, buffer)
        return element.op_name or view_source(computation, buffer.producer).op_name

    def _carry_element(self, computation: Computation, buffer: ArrayBuffer) -> CarryElement:
        key = (computation.name, buffer.producer.name)
        return self.carry_elements.get(key, CarryElement("", ""))

    def category(self, computation: Computation, buffer: ArrayBuffer) -> str:
        """The category of a buffer, one of `CATEGORIES`."""
        carry_category = self._carry_element(computation, buffer).category
        if carry_category:
            return carry_category
        producer = view_source(computation, buffer.producer)
        op_name = self.op_name(computation, buffer)
        operation, phase = scope(op_name)
        if self._gathers(producer):
            gathers_weight = self._is_argument(computation, producer.operands[0])
            return "gathered weights" if gathers_weight else "temporaries"
        dims = _without_ones(buffer.shape)
        if dims in self.argument_dims or buffer.shape.dims in self.layer_dims:
            is_gradient = phase in ("backward", "update") or "transpose(" in op_name
            return "gradients" if is_gradient else "temporaries"
        is_stacked = len(dims) > 2 and buffer.shape.dims[0] in self.trip_counts
        if is_stacked and computation.name not in self.loops:
            return "activations"
        if operation in ("unembed", "loss"):
            return "logits"
        is_differentiated = phase == "forward" and "jvp(" in op_name
        is_saved = is_differentiated and self._last_phase(computation, buffer) == "backward"
        return "activations" if is_saved else "temporaries"

    def _last_phase(self, computation: Computation, buffer: ArrayBuffer) -> str:
        """The pass of the last instruction during which a buffer is live."""
        instructions = self.schedules.setdefault(
            computation.name, tuple(computation.instructions.values())
        )
        return scope(instructions[min(buffer.last, len(instructions) - 1)].op_name)[1]

    def _gathers(self, instruction: Instruction) -> bool:
        """Whether an instruction is an all-gather, or a fusion or start that contains one."""
        if instruction.opcode in ("fusion", "async-start", "call-start"):
            nested = self.module.callee(instruction).instructions.values()
            return any(op.opcode.startswith("all-gather") for op in nested)
        return instruction.opcode.startswith("all-gather")

    def _is_argument(self, computation: Computation, name: str) -> bool:
        """Whether an array is an argument, or a copy or slice of one, also inside loops.

        Inside a loop, the carry element that holds the argument must not change.
        """
        while True:
            instruction = computation.instructions[name]
            if instruction.opcode == "parameter":
                return computation.name == self.module.entry
            if not instruction.operands:
                return False
            operand = computation.operand(instruction)
            if instruction.opcode == "get-tuple-element" and operand.opcode == "parameter":
                outer = self._loop_invariant(computation, instruction)
                if outer is None:
                    return False
                computation, name = outer
            elif instruction.opcode in _PASS_THROUGH or instruction.opcode in _SLICES:
                name = operand.name
            else:
                return False

    def _loop_invariant(
        self, body: Computation, element: Instruction
    ) -> tuple[Computation, str] | None:
        """The value outside the loop of a carry element that the body never changes.

        Returns its computation and instruction; None if the body changes the element.
        """
        if body.name not in self.loops or not _is_unchanged(body, element):
            return None
        caller, loop = self.loops[body.name]
        carry = caller.operand(loop)
        if carry.opcode != "tuple":
            return None
        return caller, carry.operands[element.tuple_index]


def _without_ones(shape: Shape) -> tuple[int, ...]:
    return tuple(dim for dim in shape.dims if dim > 1)


def _is_unchanged(body: Computation, element: Instruction) -> bool:
    """Whether a loop body returns one element of its carry unchanged."""
    root = body.root_instruction
    index = element.tuple_index
    if root.opcode != "tuple" or index >= len(root.operands):
        return False
    result = body.operand(root, index)
    return result.opcode == "get-tuple-element" and result.tuple_index == index
