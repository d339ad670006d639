"""Names for the arrays of a compiled program, in the terms of the model: `unembed logits [B,T,V]`.

The compiled program gives the shape of an array and the operation that produces it. The plan has
the name of every array of a step, with its dims on one chip. An array gets the name of a planned
array whose operation and dims match.
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
ACTIVATION_NAMES = {"x": "input", "y": "output", "s": "scores", "o": "attended", "h": "hidden"}
ATTENTION_PRODUCTS = ("attn.scores", "attn.values")  # operations that one kernel computes
MAX_NAMES = 5  # the largest number of candidate names that are listed for an array
MAX_ARRAYS = 8  # the largest number of arrays at the peak that a verdict lists

# Path in the training state -> category of the argument.
STATE_CATEGORIES = (
    ("['moments']", "optimizer"),
    ("['master']", "optimizer"),
    ("['lost']", "optimizer"),
    ("['weights']", "weights"),
)

# Names that JAX adds to the name scopes of a program.
_JIT = re.compile(r"\bp?jit\([^()]*\)")
_TRANSFORMS = frozenset((
    "jvp", "transpose", "vmap", "while", "body", "cond", "branch", "closed_call", "checkpoint",
    "rematted_computation", "shard_map", "custom_vjp_call", "custom_jvp_call", "remat", "pjit",
))  # fmt: skip


def argument_category(op_name: str) -> str:
    """The category of an argument of a training step, from its path in the state."""
    for path, category in STATE_CATEGORIES:
        if path in op_name:
            return category
    return "arguments"


def user_scope(op_name: str) -> str:
    """The name scopes that the program's own code opened, without those of JAX: `encoder/mlp`.

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
        scopes: operations that write or read it; () for an array stacked over layers.
        dim_names: names of the dims, such as `("B", "T", "D")`.
        dims: sizes of the dims on one chip.
        category: one of `hlo.memory.CATEGORIES`.
        n_layers: number of layers over which it is stacked; 0 if it is not.
    """

    name: str
    scopes: tuple[str, ...]
    dim_names: tuple[str, ...]
    dims: tuple[int, ...]
    category: str
    n_layers: int = 0


class ArrayNames:
    """Names the arrays of the program of one plan.

    `arrays` are logits, operands and results of matmuls; `saved` are activations that layers save;
    `weight_stacks` are weights stacked over layers.
    """

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
                if name == "onehot":  # the program looks up embedding rows instead
                    continue
                category = "gathered weights" if name in step.weights else "temporaries"
                if name in step.weights and matmul.count > 1 and not operand.gradient_of:
                    self.weight_stacks += _weight_stacks(matmul, mesh)
                self.arrays.append(_planned_array(operand, matmul.sizes, mesh, category, operation))

    def describe(self, live: LiveArray) -> PeakArray:
        """Describe an array that is live at the peak, by its name in the plan if it has one."""
        if live.category not in ("arguments", "weights", "optimizer"):
            for match in (self._match_saved, self._match_operand, self._match_weight_stack):
                named = match(live)
                if named:
                    return named
        operation, *others = live.scope.split("+")
        name = operation or _state_name(live.op_name)
        if operation and others:
            name = f"{operation} and {len(others)} more"
        return _peak_array(live, name, None, live.category)

    def _match_saved(self, live: LiveArray) -> PeakArray | None:
        """Match an array that layers save for the backward pass."""
        matches = _same_dims(self.saved, live)
        if not matches or live.category not in ("activations", "temporaries"):
            return None
        names = _distinct_names(matches)
        name = " or ".join(names)
        if len(names) > MAX_NAMES:
            name = "what the backward pass reads"
        name = f"{name}, saved by {matches[0].n_layers} layers"
        return _peak_array(live, name, matches[0], "activations")

    def _match_operand(self, live: LiveArray) -> PeakArray | None:
        """Match an operand or result of the operation that produced the array.

        A copy without an op name matches if all planned arrays with its dims have one name.
        """
        if "+" in live.scope:  # produced by several combined operations
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

    def _match_weight_stack(self, live: LiveArray) -> PeakArray | None:
        """Match the weight of a matmul, stacked over all layers."""
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
    """Merge arrays with equal name, shape and category into rows, largest total bytes first."""
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
    """The first `MAX_ARRAYS` arrays that are not of the excluded categories."""
    listed = [array for array in arrays if array.category not in excluded_categories]
    return tuple(listed[:MAX_ARRAYS])


def describe_unplanned(live: LiveArray) -> PeakArray:
    """Describe an array of a program without a plan, by the program's own name scopes."""
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
    """A planned array with its dims on one chip.

    Args:
        sizes: dim name -> global size.
        mesh: axis -> size.
        operation: the operation that it belongs to, if it is an operand.
    """
    dims = []
    for dim in array.dims:
        n_shards = math.prod(mesh[axis] for axis in dim.axes)
        dims.append(-(-int(sizes[dim.name]) // n_shards))
    name = ACTIVATION_NAMES.get(array.base, array.base)
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
    """Logits of one chunk of a loss that is computed in chunks of tokens."""
    B, T, V = logits.dims
    return replace(logits, dim_names=("BT", "V"), dims=(B * T // n_chunks, V))


def _weight_stacks(matmul: Matmul, mesh: Mapping[str, int]) -> list[PlannedArray]:
    """The weight of a matmul, stacked over the layers of a stage: as stored, and as gathered."""
    weight = matmul.program.einsum.right
    stacks = []
    for array in (weight, matmul.program.local.right):
        if array.name == weight.name:
            planned = _planned_array(array, matmul.sizes, mesh, "gradients")
            stacks.append(_stack(planned, matmul.count, mesh))
    return stacks


def _stack(array: PlannedArray, n_layers: int, mesh: Mapping[str, int]) -> PlannedArray:
    """An array stacked over layers; a pipeline stage has its share of the layers."""
    n_local = max(1, n_layers // mesh["pipe"])
    return replace(
        array,
        scopes=(),
        dim_names=("L", *array.dim_names),
        dims=(n_local, *array.dims),
        n_layers=n_local,
    )


def _same_dims(arrays: Sequence[PlannedArray], live: LiveArray) -> list[PlannedArray]:
    """Planned arrays with the dims of a live array, or with these dims in another order if none.

    Dims of size 1 are ignored.
    """
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
    """Name of an argument: `w_up of moments` for `state['moments'][0].mu['layers'][0]['w_up']`."""
    keys = re.findall(r"\['(\w+)'\]", op_name)
    return f"{keys[-1]} of {keys[0]}" if len(keys) > 1 else ""
