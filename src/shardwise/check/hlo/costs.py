"""FLOPs of each instruction of a compiled program, and the bytes that it moves from and to HBM.

Products are counted exactly, as 2 FLOPs per multiply-add of an element that exists: a TPU writes
batched products as convolutions over windows that mostly hang over the edge. Kernels count what
they state, or what the caller's hook says.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.check.hlo.loops import Runs, runs
from shardwise.check.hlo.scopes import scope
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.hlo.traffic import hbm_bytes

ELEMENTWISE = frozenset(
    [
        "abs",
        "add",
        "and",
        "atan2",
        "cbrt",
        "ceil",
        "clamp",
        "compare",
        "convert",
        "cosine",
        "divide",
        "erf",
        "exponential",
        "exponential-minus-one",
        "floor",
        "log",
        "log-plus-one",
        "logistic",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "or",
        "power",
        "remainder",
        "round-nearest-afz",
        "round-nearest-even",
        "rsqrt",
        "select",
        "shift-left",
        "shift-right-arithmetic",
        "shift-right-logical",
        "sign",
        "sine",
        "sqrt",
        "subtract",
        "tan",
        "tanh",
        "xor",
    ]
)
# Instructions that are only what other computations do, and are counted there.
ELSEWHERE = ("while", "conditional", "call", "call-start", "call-done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one run.

    Args:
        flops: of products.
        elementwise: of all other arithmetic, one per element of a result or of what is reduced.
        hbm_bytes: read and written, whole tiles.
        dtype: of the inputs of the largest product, "" without one.
        products: (op_name, FLOPs) of each product: a fusion may hold those of several operations.
    """

    flops: int
    elementwise: int
    hbm_bytes: int
    dtype: str = ""
    products: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An instruction that is scheduled, its cost, and how often it runs."""

    computation: str
    instruction: Instruction
    cost: Cost
    count: int
    unknown: bool

    @property
    def flops(self) -> int:
        return self.cost.flops * self.count

    @property
    def hbm_bytes(self) -> int:
        return self.cost.hbm_bytes * self.count


Hook = Callable[[Instruction], Cost | None]


def costs(module: Module, hook: Hook | None = None, counted: Runs | None = None) -> list[Op]:
    """Every scheduled instruction with what it computes and moves.

    Args:
        hook: the cost of a custom call that does not state its own, or None.
        counted: `loops.runs(module)` where the caller has it already.

    Returns:
        Ops in the order of the schedule; `unknown` marks kernels of which nobody said the cost.
    """
    counted = counted or runs(module)
    found = []
    for name in counted.scheduled:
        block = module.computations[name]
        if not counted.count[name]:
            continue
        for one in block.instructions.values():
            if one.opcode not in ELSEWHERE:
                cost, unknown = _cost(module, block, one, hook)
                found.append(
                    Op(
                        computation=name,
                        instruction=one,
                        cost=cost,
                        count=counted.count[name],
                        unknown=unknown,
                    )
                )
    return found


def flops(module: Module, hook: Hook | None = None) -> int:
    """FLOPs of all products in one run of the program, on one chip."""
    return sum(op.flops for op in costs(module, hook))


def flops_by_scope(ops: Iterable[Op]) -> dict[tuple[str, str], int]:
    """FLOPs of products by planned operation and pass, in one run of the program."""
    total: dict[tuple[str, str], int] = {}
    for op in ops:
        for op_name, n in op.cost.products:
            key = scope(op_name)
            total[key] = total.get(key, 0) + n * op.count
    return total


def _cost(
    module: Module, block: Computation, one: Instruction, hook: Hook | None
) -> tuple[Cost, bool]:
    stated = _stated(one, hook) if one.opcode == "custom-call" else None
    if stated is not None:
        return stated, False
    elementwise, unknown = 0, False
    products: list[tuple[str, int]] = []
    largest, dtype = 0, ""
    for home, inner in _inside(module, block, one):
        n = product_flops(home, inner)
        if n > largest:
            largest, dtype = n, home.instructions[inner.operands[0]].shapes[0].dtype
        products += [(inner.op_name or one.op_name, n)] if n else []
        elementwise += _elementwise(home, inner)
        unknown = unknown or (inner.opcode == "custom-call" and not n and is_kernel(inner))
    cost = Cost(
        flops=sum(n for _, n in products),
        elementwise=elementwise,
        hbm_bytes=hbm_bytes(module, block, one),
        dtype=dtype,
        products=tuple(products),
    )
    return cost, unknown


def _inside(
    module: Module, block: Computation, one: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """The instruction, or for a fusion those in it at any depth."""
    if one.opcode not in ("fusion", "async-start"):
        yield block, one
        return
    for name in one.called:
        inner = module.computations[name]
        for each in inner.instructions.values():
            yield from _inside(module, inner, each)


def is_kernel(one: Instruction) -> bool:
    """A custom call that computes: its target says so, or it states a cost."""
    target = one.word("custom_call_target")
    return target.startswith(
        ("tpu_custom_call", "__cublas", "__cudnn", "triton", "__gpu$", "mosaic")
    )


def _stated(one: Instruction, hook: Hook | None) -> Cost | None:
    """What a hook says of a custom call, else what the kernel states."""
    told = hook(one) if hook else None
    if told is not None:
        return told
    config = one.backend.get("custom_call_config", one.backend)
    stated = config.get("cost_estimate") if isinstance(config, dict) else None
    if not isinstance(stated, dict) or "flops" not in stated:
        return None
    return Cost(
        flops=int(stated["flops"]),
        elementwise=int(stated.get("transcendentals", 0)),
        hbm_bytes=int(stated.get("bytes_accessed", 0)),
        dtype=one.shapes[0].dtype,
        products=((one.op_name, int(stated["flops"])),),
    )


def product_flops(block: Computation, one: Instruction) -> int:
    """FLOPs of one product, 0 of anything else."""
    if one.opcode == "dot":
        return _dot(block, one, one.numbers("lhs_contracting_dims"))
    if one.opcode == "convolution":
        return _convolution(block, one)
    target = one.word("custom_call_target") if one.opcode == "custom-call" else ""
    if target.startswith("__cublas"):
        numbers = _nested(one.backend, "dot_dimension_numbers")
        dims = numbers.get("lhs_contracting_dimensions", []) if numbers else []
        return _dot(block, one, tuple(int(d) for d in dims)) if numbers else 0
    return 0


def _nested(config: dict[str, Any], key: str) -> dict[str, Any] | None:
    """A part of the backend's configuration, one level down."""
    for value in config.values():
        if isinstance(value, dict) and isinstance(value.get(key), dict):
            found: dict[str, Any] = value[key]
            return found
    return None


def _dot(block: Computation, one: Instruction, summed: tuple[int, ...]) -> int:
    left = block.instructions[one.operands[0]].shapes[0].dims
    return 2 * one.shapes[0].elements * math.prod(left[d] for d in summed)


def _elementwise(block: Computation, one: Instruction) -> int:
    if one.opcode in ELEMENTWISE:
        return one.shapes[0].elements
    if one.opcode in ("reduce", "reduce-window"):
        return block.instructions[one.operands[0]].shapes[0].elements
    return 0


_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


def _convolution(block: Computation, one: Instruction) -> int:
    """2 FLOPs for every input element under every element of the window that is one."""
    labels = _LABELS.search(one.attributes)
    if labels is None:
        return 0
    left, right = (block.instructions[name].shapes[0].dims for name in one.operands[:2])
    of_left, of_right, of_out = labels.groups()
    window = _WINDOW.search(one.attributes)
    fields = dict(re.findall(r"(\w+)=(\S+)", window[1])) if window else {}
    places = 1
    for i, digit in enumerate(sorted(d for d in of_out if d.isdigit())):
        low = fields["pad"].split("x")[i].split("_")[0] if "pad" in fields else "0"
        places *= _pairs(
            left[of_left.index(digit)],
            right[of_right.index(digit)],
            one.shapes[0].dims[of_out.index(digit)],
            *(_field(fields, key, i) for key in ("stride", "lhs_dilate", "rhs_dilate")),
            int(low),
        )
    batches = one.numbers("batch_group_count")[0] if "batch_group_count=" in one.attributes else 1
    each = right[of_right.index("i")] * right[of_right.index("o")]
    return 2 * each * places * left[of_left.index("b")] // batches


def _field(fields: dict[str, str], key: str, i: int) -> int:
    return int(fields[key].split("x")[i]) if key in fields else 1


@functools.cache
def _pairs(
    size: int, window: int, out: int, stride: int, dilated: int, spread: int, low: int
) -> int:
    """Pairs of a place of the result and one in the window that lie on an element of the input."""
    at = np.arange(out)[:, None] * stride + np.arange(window)[None, :] * spread - low
    return int(((at >= 0) & (at <= (size - 1) * dilated) & (at % dilated == 0)).sum())
