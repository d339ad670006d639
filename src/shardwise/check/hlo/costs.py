"""FLOPs of each instruction of a compiled program, and the bytes that it reads and writes in HBM.

A product is a matmul or a convolution. It counts 2 FLOPs per multiply-add with an element that
exists: a TPU expresses batched matmuls as convolutions whose windows lie mostly in the padding. A
custom kernel counts the cost that its `cost_estimate` states, or that a callback returns.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.check.hlo.loops import RunCounts, count_runs
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.hlo.traffic import hbm_bytes

ELEMENTWISE = frozenset((
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "convert", "cosine",
    "divide", "erf", "exponential", "exponential-minus-one", "floor", "log", "log-plus-one",
    "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "power", "remainder",
    "round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left",
    "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "subtract", "tan",
    "tanh", "xor",
))  # fmt: skip
# Instructions without work of their own: the computations that they call are counted separately.
_CALLERS = ("while", "conditional", "call", "call-start", "call-done")
_KERNELS = ("tpu_custom_call", "__cublas", "__cudnn", "triton", "__gpu$", "mosaic")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one run of an instruction.

    Args:
        flops: FLOPs of products (matmuls and convolutions).
        elementwise: FLOPs of all other arithmetic: one per result element, or per element that a
            reduction reads.
        hbm_bytes: bytes read and written in HBM, in whole tiles.
        dtype: element type of the inputs of the largest product; "" without products.
        products: (op_name, FLOPs) of each product; a fusion may contain several.
    """

    flops: int
    elementwise: int
    hbm_bytes: int
    dtype: str = ""
    products: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOp:
    """A scheduled instruction, its cost, and how often it runs.

    Args:
        computation: name of the computation that contains it.
        n_runs: how often it runs in one run of the program.
        has_unknown_kernel: whether it contains a kernel of unknown cost.
    """

    computation: str
    instruction: Instruction
    cost: Cost
    n_runs: int
    has_unknown_kernel: bool

    @property
    def flops(self) -> int:
        """FLOPs of products in one run of the program."""
        return self.cost.flops * self.n_runs

    @property
    def hbm_bytes(self) -> int:
        """HBM bytes in one run of the program."""
        return self.cost.hbm_bytes * self.n_runs


KernelCost = Callable[[Instruction], Cost | None]


def program_costs(
    module: Module, kernel_cost: KernelCost | None = None, run_counts: RunCounts | None = None
) -> list[ScheduledOp]:
    """Every scheduled instruction with its cost, in schedule order.

    Args:
        kernel_cost: returns the cost of a custom call, or None to use the cost that the call
            states.
        run_counts: `loops.count_runs(module)`, if the caller has it already.
    """
    run_counts = run_counts or count_runs(module)
    ops = []
    for name in run_counts.scheduled:
        computation = module.computations[name]
        n_runs = run_counts.by_computation[name]
        if not n_runs:
            continue
        for instruction in computation.instructions.values():
            if instruction.opcode not in _CALLERS:
                cost, unknown = instruction_cost(module, computation, instruction, kernel_cost)
                ops.append(
                    ScheduledOp(
                        computation=name,
                        instruction=instruction,
                        cost=cost,
                        n_runs=n_runs,
                        has_unknown_kernel=unknown,
                    )
                )
    return ops


def instruction_cost(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    kernel_cost: KernelCost | None,
) -> tuple[Cost, bool]:
    """Cost of an instruction, and whether it contains a kernel of unknown cost."""
    if instruction.opcode == "custom-call":
        custom = _custom_call_cost(instruction, kernel_cost)
        if custom is not None:
            return custom, False
    elementwise = 0
    unknown = False
    products: list[tuple[str, int]] = []
    largest = 0
    dtype = ""
    for container, nested in instructions_inside(module, computation, instruction):
        flops = product_flops(container, nested)
        if flops > largest:
            largest = flops
            dtype = container.operand(nested).shapes[0].dtype
        if flops:
            products.append((nested.op_name or instruction.op_name, flops))
        elif nested.opcode == "custom-call" and is_kernel(nested):
            unknown = True
        elementwise += _elementwise_flops(container, nested)
    cost = Cost(
        flops=sum(flops for _, flops in products),
        elementwise=elementwise,
        hbm_bytes=hbm_bytes(module, computation, instruction),
        dtype=dtype,
        products=tuple(products),
    )
    return cost, unknown


def instructions_inside(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """Yield (computation, instruction) for an instruction.

    For a fusion or an `async-start`, yield the instructions that it contains, at any depth.
    """
    if instruction.opcode not in ("fusion", "async-start"):
        yield computation, instruction
        return
    for name in instruction.callees:
        callee = module.computations[name]
        for nested in callee.instructions.values():
            yield from instructions_inside(module, callee, nested)


def is_kernel(custom_call: Instruction) -> bool:
    """Whether a custom call runs a kernel with FLOPs, such as Pallas, Triton, cuBLAS or cuDNN."""
    return custom_call.attribute("custom_call_target").startswith(_KERNELS)


def _custom_call_cost(instruction: Instruction, kernel_cost: KernelCost | None) -> Cost | None:
    """The cost of a custom call from the callback, else the `cost_estimate` of the kernel.

    None if there is neither.
    """
    if kernel_cost:
        cost = kernel_cost(instruction)
        if cost is not None:
            return cost
    config = instruction.backend_config.get("custom_call_config", instruction.backend_config)
    estimate = config.get("cost_estimate") if isinstance(config, dict) else None
    if not isinstance(estimate, dict) or "flops" not in estimate:
        return None
    return Cost(
        flops=int(estimate["flops"]),
        elementwise=int(estimate.get("transcendentals", 0)),
        hbm_bytes=int(estimate.get("bytes_accessed", 0)),
        dtype=instruction.shapes[0].dtype,
        products=((instruction.op_name, int(estimate["flops"])),),
    )


def product_flops(computation: Computation, instruction: Instruction) -> int:
    """FLOPs of a dot, a convolution or a cuBLAS call; 0 for any other instruction."""
    if instruction.opcode == "dot":
        return _dot_flops(computation, instruction, instruction.integers("lhs_contracting_dims"))
    if instruction.opcode == "convolution":
        return _convolution_flops(computation, instruction)
    if instruction.opcode == "custom-call":
        target = instruction.attribute("custom_call_target")
        dims = _dot_dims(instruction.backend_config)
        if target.startswith("__cublas") and dims is not None:
            return _dot_flops(computation, instruction, dims)
    return 0


def _dot_dims(config: dict[str, Any]) -> tuple[int, ...] | None:
    """Contracting dims of the left operand from the backend configuration of a cuBLAS call."""
    for part in config.values():
        if isinstance(part, dict):
            dims = part.get("dot_dimension_numbers")
            if isinstance(dims, dict) and dims:
                return tuple(map(int, dims.get("lhs_contracting_dimensions", ())))
    return None


def _dot_flops(
    computation: Computation, instruction: Instruction, contracting_dims: tuple[int, ...]
) -> int:
    left = computation.operand(instruction).shapes[0].dims
    contracted = math.prod(left[dim] for dim in contracting_dims)
    return 2 * instruction.shapes[0].elements * contracted


def _elementwise_flops(computation: Computation, instruction: Instruction) -> int:
    if instruction.opcode in ELEMENTWISE:
        return instruction.shapes[0].elements
    if instruction.opcode in ("reduce", "reduce-window"):
        return computation.operand(instruction).shapes[0].elements
    return 0


def _convolution_flops(computation: Computation, instruction: Instruction) -> int:
    """2 FLOPs for each pair of a window element and an input element outside the padding."""
    labels = _DIM_LABELS.search(instruction.attributes)
    if labels is None:
        return 0
    left = computation.operand(instruction, 0).shapes[0].dims
    right = computation.operand(instruction, 1).shapes[0].dims
    left_labels, right_labels, result_labels = labels.groups()
    window = _WINDOW.search(instruction.attributes)
    fields = dict(re.findall(r"(\w+)=(\S+)", window[1])) if window else {}
    pairs = 1
    for axis, digit in enumerate(sorted(filter(str.isdigit, result_labels))):
        pairs *= _window_pairs(
            left[left_labels.index(digit)],
            right[right_labels.index(digit)],
            instruction.shapes[0].dims[result_labels.index(digit)],
            _window_field(fields, "stride", axis, 1),
            _window_field(fields, "lhs_dilate", axis, 1),
            _window_field(fields, "rhs_dilate", axis, 1),
            _window_field(fields, "pad", axis, 0),
        )
    n_batch_groups = 1
    if "batch_group_count=" in instruction.attributes:
        n_batch_groups = instruction.integers("batch_group_count")[0]
    features = right[right_labels.index("i")] * right[right_labels.index("o")]
    return 2 * features * pairs * left[left_labels.index("b")] // n_batch_groups


def _window_field(fields: dict[str, str], key: str, axis: int, default: int) -> int:
    """Read a window field, such as `stride=2x1`, on one axis; of `pad=1_0x0_0` the low padding."""
    if key not in fields:
        return default
    return int(fields[key].split("x")[axis].split("_")[0])


@functools.cache
def _window_pairs(
    size: int,
    window: int,
    result_size: int,
    stride: int,
    input_dilation: int,
    window_dilation: int,
    low_padding: int,
) -> int:
    """Number of (result element, window element) pairs that read an input element.

    Pairs that read padding, or a gap between dilated elements, do not count. One spatial axis.
    """
    starts = np.arange(result_size)[:, None] * stride
    positions = starts + np.arange(window)[None, :] * window_dilation - low_padding
    inside = (positions >= 0) & (positions <= (size - 1) * input_dilation)
    return int((inside & (positions % input_dilation == 0)).sum())
