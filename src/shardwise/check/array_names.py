"""Names for the arrays of a compiled program, in the terms of the model: `unembed logits [B,T,V]`.

A compiler knows shapes and the operation that produced an array. A plan knows every array of a step
by name, with the dims that a chip has of it. An array is named where the two agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.check.hlo.memory import LiveArray
from shardwise.check.verdict import PeakArray
from shardwise.estimate.training.memory.activations import is_recomputed
from shardwise.ops.einsum import Array
from shardwise.ops.program import Matmul
from shardwise.search.training.problem import Case

DTYPES = {"f32": "fp32", "f16": "fp16"}
PLACES = {"x": "input", "y": "output", "s": "scores", "o": "attended", "h": "hidden"}
ATTENTION_PRODUCTS = ("attn.scores", "attn.values")  # operations that one kernel computes
MAX_NAMES = 5  # names that are listed for one shape
MAX_ARRAYS = 8  # arrays at the peak that a verdict lists

# Arguments of a training step, by their path in the state.
ARGUMENTS = (
    ("['moments']", "optimizer"),
    ("['master']", "optimizer"),
    ("['lost']", "optimizer"),
    ("['weights']", "weights"),
)

# Names that JAX puts around the scopes of a program.
_JIT = re.compile(r"\bp?jit\([^()]*\)")
_TRANSFORMS = frozenset((
    "jvp", "transpose", "vmap", "while", "body", "cond", "branch", "closed_call", "checkpoint",
    "rematted_computation", "shard_map", "custom_vjp_call", "custom_jvp_call", "remat", "pjit",
))  # fmt: skip


def argument_category(op_name: str) -> str:
    """The category of an argument of a training step."""
    for path, category in ARGUMENTS:
        if path in op_name:
            return category
    return "arguments"


def user_scope(op_name: str) -> str:
    """The scopes that the program's own code opened around an operation, `encoder/mlp`.

    >>> user_scope("jit(step)/transpose(jvp(encoder))/while/body/mlp/dot_general")
    'encoder/mlp'
    """
    if "/" not in op_name:
        return ""
    path = _JIT.sub("", op_name.rpartition("/")[0])
    parts = [part for part in re.split(r"[/()]", path) if part and part not in _TRANSFORMS]
    return "/".join(dict.fromkeys(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArray:
    """An array of the plan's step.

    Args:
        scopes: operations that write or read it; () for what every layer saves.
        dim_names: `("B", "T", "D")`.
        dims: the dims that a chip has.
        n_layers: layers of a stack that saves it for their backward passes, else 0.
    """

    name: str
    scopes: tuple[str, ...]
    dim_names: tuple[str, ...]
    dims: tuple[int, ...]
    category: str
    n_layers: int = 0


class ArrayNames:
    """Names for the arrays of one plan's program."""

    def __init__(self, case: Case) -> None:
        layout = case.layout
        mesh = layout.sizes
        step = case.evaluate().program
        logits = _planned_array(step.logits.array, step.logits.sizes, mesh, "logits")
        self.arrays = [logits]
        self.saved: list[PlannedArray] = []
        self.weight_stacks: list[PlannedArray] = []
        if layout.loss_chunks > 1:
            self.arrays.append(_logits_chunk(logits, layout.loss_chunks))
        for activation in step.saved:
            layer = case.model.groups[activation.group].layer
            if not is_recomputed(layout, activation.array.name, layer):
                array = _planned_array(activation.array, activation.sizes, mesh, "activations")
                self.saved.append(_stack(array, activation.count, mesh))
        for matmul in step.matmuls:
            local = matmul.program.local
            operation = matmul.term.name
            for operand in (*local.inputs, local.output):
                name = operand.base
                if name == "onehot":  # embedding rows are looked up
                    continue
                category = "gathered weights" if name in step.weights else "temporaries"
                if name in step.weights and matmul.count > 1 and not operand.gradient_of:
                    self.weight_stacks += _weight_stacks(matmul, mesh)
                self.arrays.append(_planned_array(operand, matmul.sizes, mesh, category, operation))

    def describe(self, live: LiveArray) -> PeakArray:
        """One array that is live at the peak, with its name in the plan where it has one."""
        if live.category not in ("arguments", "weights", "optimizer"):
            named = self._saved(live) or self._operand(live) or self._weight_stack(live)
            if named:
                return named
        operation, *others = live.scope.split("+")
        name = operation or _state_name(live.op_name)
        if operation and others:
            name = f"{operation} and {len(others)} more"
        return _peak_array(live, name, None, live.category)

    def _saved(self, live: LiveArray) -> PeakArray | None:
        """An array that layers save for their backward passes."""
        matches = _same_dims(self.saved, live)
        if not matches or live.category not in ("activations", "temporaries"):
            return None
        names = _distinct_names(matches)
        name = " or ".join(names)
        if len(names) > MAX_NAMES:
            name = "what the backward pass reads"
        name = f"{name}, saved by {matches[0].n_layers} layers"
        return _peak_array(live, name, matches[0], "activations")

    def _operand(self, live: LiveArray) -> PeakArray | None:
        """An operand or result of the operation that produced it.

        A copy without a name is the only array with its dims.
        """
        if "+" in live.scope:  # of several combined operations
            return None
        candidates = _same_dims(self.arrays, live)
        matches = [array for array in candidates if live.scope in array.scopes]
        names = {array.name.removeprefix("gradient of ") for array in candidates}
        if not live.op_name and len(names) == 1:
            matches = candidates
        if not matches:
            return None
        array = matches[0]
        category = "logits" if array.category == "logits" else live.category
        return _peak_array(live, f"{live.scope or array.scopes[0]} {array.name}", array, category)

    def _weight_stack(self, live: LiveArray) -> PeakArray | None:
        """A weight of all layers."""
        matches = _same_dims(self.weight_stacks, live)
        if not matches:
            return None
        names = " or ".join(_distinct_names(matches))
        category = "gradients"
        use = "gradients or updates"
        if live.category == "gathered weights":
            category = live.category
            use = "gathered"
        return _peak_array(
            live, f"{names} of {matches[0].n_layers} layers, {use}", matches[0], category
        )


def merge_equal(arrays: Iterable[PeakArray]) -> tuple[PeakArray, ...]:
    """Merge arrays of one name and shape into one row with their count, largest total first."""
    rows: dict[tuple[str, str, str], PeakArray] = {}
    for array in arrays:
        key = (array.name, array.shape, array.category)
        if key in rows:
            array = replace(array, n=array.n + rows[key].n)
        rows[key] = array
    return tuple(sorted(rows.values(), key=lambda row: -row.n * row.bytes))


def largest_arrays(
    arrays: Iterable[PeakArray], excluded_categories: Sequence[str] = ()
) -> tuple[PeakArray, ...]:
    """The first `MAX_ARRAYS` arrays of other categories."""
    listed = [array for array in arrays if array.category not in excluded_categories]
    return tuple(listed[:MAX_ARRAYS])


def describe_unplanned(live: LiveArray) -> PeakArray:
    """One array of a program without a plan, named by the program's own scopes."""
    if live.category == "arguments":
        return _peak_array(live, live.op_name, None, live.category)
    return _peak_array(live, user_scope(live.op_name), None, live.category)


def _peak_array(
    live: LiveArray, name: str, planned: PlannedArray | None, category: str
) -> PeakArray:
    dtype = DTYPES.get(live.shape.dtype, live.shape.dtype)
    return PeakArray(
        n=1,
        bytes=live.bytes,
        shape=f"{dtype}[{','.join(map(str, live.shape.dims))}]",
        name=name,
        letters=f"[{','.join(planned.dim_names)}]" if planned else "",
        category=category,
        scope=live.scope or user_scope(live.op_name),
    )


def _planned_array(
    array: Array,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
    category: str,
    operation: str = "",
) -> PlannedArray:
    """An array as the rules lay it out, with the dims that one chip has."""
    dims = []
    for dim in array.dims:
        n_shards = math.prod(mesh[axis] for axis in dim.axes)
        dims.append(-(-int(sizes[dim.name]) // n_shards))
    name = PLACES.get(array.base, array.base)
    if array.gradient_of:
        name = f"gradient of {name}"
    scopes: tuple[str, ...] = ()
    if operation in ATTENTION_PRODUCTS:
        scopes = (operation, "attn.core")
    elif operation:
        scopes = (operation,)
    elif category == "logits":
        scopes = ("unembed", "loss")
    return PlannedArray(
        name=name,
        scopes=scopes,
        dim_names=tuple(dim.name for dim in array.dims),
        dims=tuple(dims),
        category=category,
    )


def _logits_chunk(logits: PlannedArray, n_chunks: int) -> PlannedArray:
    """Logits of one chunk of the tokens."""
    B, T, V = logits.dims
    return replace(logits, dim_names=("BT", "V"), dims=(B * T // n_chunks, V))


def _weight_stacks(matmul: Matmul, mesh: Mapping[str, int]) -> list[PlannedArray]:
    """The weight of a product in all layers of a stage: stored, and gathered."""
    weight = matmul.program.einsum.right
    stacks = []
    for array in (weight, matmul.program.local.right):
        if array.name == weight.name:
            planned = _planned_array(array, matmul.sizes, mesh, "gradients")
            stacks.append(_stack(planned, matmul.count, mesh))
    return stacks


def _stack(array: PlannedArray, n_layers: int, mesh: Mapping[str, int]) -> PlannedArray:
    """An array of all layers; a pipeline stage has its part of them."""
    n_local = max(1, n_layers // mesh["pipe"])
    return replace(
        array,
        scopes=(),
        dim_names=("L", *array.dim_names),
        dims=(n_local, *array.dims),
        n_layers=n_local,
    )


def _same_dims(arrays: Sequence[PlannedArray], live: LiveArray) -> list[PlannedArray]:
    """Arrays with these dims; if there are none, those with the same dims in another order."""
    dims = _without_ones(live.shape.dims)
    exact = [array for array in arrays if _without_ones(array.dims) == dims]
    if exact:
        return exact
    dims = sorted(dims)
    return [array for array in arrays if sorted(_without_ones(array.dims)) == dims]


def _distinct_names(arrays: Iterable[PlannedArray]) -> list[str]:
    return list(dict.fromkeys(array.name for array in arrays))


def _without_ones(dims: Sequence[int]) -> list[int]:
    return [dim for dim in dims if dim > 1]


def _state_name(op_name: str) -> str:
    """`state['moments'][0].mu['layers'][0]['w_up']` -> `w_up of moments`."""
    keys = re.findall(r"\['(\w+)'\]", op_name)
    return f"{keys[-1]} of {keys[0]}" if len(keys) > 1 else ""
