"""Arrays of a compiled program in the words of the model: `unembed logits bf16 [B,T,V]`.

A compiler knows shapes and the operation that made an array. A plan knows every array of a step by
name, with the dims that a chip has of it. Where both agree the array has its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.check.hlo.memory import Held
from shardwise.check.verdict import Buffer
from shardwise.estimate.training.memory.activations import is_recomputed
from shardwise.ops.einsum import Array
from shardwise.ops.program import Matmul
from shardwise.search.training.problem import Case

DTYPES = {"f32": "fp32", "f16": "fp16"}
PLACES = {"x": "input", "y": "output", "s": "scores", "o": "attended", "h": "hidden"}
CORE = ("attn.scores", "attn.values")  # what one kernel computes
LISTED = 5  # names of arrays of one shape

# Arguments of a training step, by how JAX writes where they stand in the state.
ARGUMENTS = (
    ("['moments']", "optimizer"),
    ("['master']", "optimizer"),
    ("['lost']", "optimizer"),
    ("['weights']", "weights"),
)

# What JAX puts around the names of a program's own scopes.
_AROUND = re.compile(r"\bp?jit\([^()]*\)")
_MARKS = frozenset(
    {"jvp", "transpose", "vmap", "while", "body", "cond", "branch", "closed_call", "checkpoint"}
    | {"rematted_computation", "shard_map", "custom_vjp_call", "custom_jvp_call", "remat", "pjit"}
)


def argument(op_name: str) -> str:
    """The category of an argument of a training step."""
    return next((category for mark, category in ARGUMENTS if mark in op_name), "arguments")


def own_scope(op_name: str) -> str:
    """The scopes that a program's own code has opened around an operation, `encoder/mlp`.

    >>> own_scope("jit(step)/transpose(jvp(encoder))/while/body/mlp/dot_general")
    'encoder/mlp'
    """
    if "/" not in op_name:
        return ""
    path = _AROUND.sub("", op_name.rpartition("/")[0])
    parts = [part for part in re.split(r"[/()]", path) if part and part not in _MARKS]
    return "/".join(dict.fromkeys(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """An array that the plan knows.

    Args:
        scopes: operations that make or read it; none where every layer keeps it.
        dims: what a chip has of them.
        kept: layers of a stack that keep it for their backward passes, 0 of what they work on.
    """

    name: str
    scopes: tuple[str, ...]
    letters: tuple[str, ...]
    dims: tuple[int, ...]
    category: str
    kept: int = 0


class Words:
    """Names for the arrays of one plan's program."""

    def __init__(self, case: Case) -> None:
        works, sizes, layout = case.evaluate().program, case.layout.sizes, case.layout
        self.known: list[Named] = [_named(works.logits.array, works.logits.sizes, sizes, "logits")]
        if layout.loss_chunks > 1:
            self.known.append(_chunk(self.known[0], layout.loss_chunks))
        self.stacks: list[Named] = []
        for kept in works.kept:
            layer = case.model.groups[kept.group].layer
            if not is_recomputed(layout, kept.array.name, layer):
                one = _named(kept.array, kept.sizes, sizes, "activations")
                # A stage of a pipeline holds its part of the layers.
                self.known.append(_of_layers(one, max(1, kept.count // sizes["pipe"])))
        for matmul in works.matmuls:
            local = matmul.program.local
            scope = matmul.term.name
            for array in (*local.inputs, local.output):
                if array.base == "onehot":  # rows are looked up
                    continue
                weight = array.base in works.weights
                if weight and matmul.count > 1 and not array.gradient_of:
                    self.stacks += _stacked(matmul, sizes)
                category = "gathered weights" if weight else "temporaries"
                one = _named(array, matmul.sizes, sizes, category, scope)
                self.known.append(one)

    def of(self, held: Held) -> Buffer:
        """One array that is held at the peak."""
        state = held.category in ("arguments", "weights", "optimizer")
        found = None if state else self._kept(held) or self._made(held) or self._stack(held)
        first, *more = held.scope.split("+")
        plain = f"{first} and {len(more)} more" if more else first
        return found or _buffer(held, plain or _state(held.op_name), None, held.category)

    def _kept(self, held: Held) -> Buffer | None:
        """What layers keep for their backward passes."""
        fits = _like([n for n in self.known if n.kept], held)
        if not fits or held.category not in ("activations", "temporaries"):
            return None
        names = list(dict.fromkeys(n.name for n in fits))
        told = " or ".join(names) if len(names) <= LISTED else "what the backward pass reads"
        return _buffer(held, f"{told}, kept by {fits[0].kept} layers", fits[0], "activations")

    def _made(self, held: Held) -> Buffer | None:
        """An input or output of the operation that made it; of a copy without a name, the only
        array with its dims."""
        fits = _like([n for n in self.known if not n.kept], held)
        here = [n for n in fits if held.scope in n.scopes]
        names = {n.name.removeprefix("gradient of ") for n in fits}
        if not held.op_name and len(names) == 1:
            here = fits
        if not here or "+" in held.scope:  # of several operations no array is told apart
            return None
        category = "logits" if here[0].category == "logits" else held.category
        return _buffer(held, f"{held.scope or here[0].scopes[0]} {here[0].name}", here[0], category)

    def _stack(self, held: Held) -> Buffer | None:
        """A weight of all layers."""
        fits = _like(self.stacks, held)
        if not fits:
            return None
        names = " or ".join(dict.fromkeys(n.name for n in fits))
        gathered = held.category == "gathered weights"
        what = "gathered" if gathered else "gradients or updates"
        category = held.category if gathered else "gradients"
        return _buffer(held, f"{names} of {fits[0].kept} layers, {what}", fits[0], category)


def grouped(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    """Arrays of one name and shape as one row with their number, the largest sums first."""
    found: dict[tuple[str, str, str], Buffer] = {}
    for one in buffers:
        key = (one.name, one.shape, one.category)
        n = one.n + (found[key].n if key in found else 0)
        found[key] = Buffer(
            n=n,
            bytes=one.bytes,
            shape=one.shape,
            name=one.name,
            letters=one.letters,
            category=one.category,
            scope=one.scope,
        )
    return tuple(sorted(found.values(), key=lambda b: -b.n * b.bytes))


def unnamed(held: Held) -> Buffer:
    """One array of a program of which no plan is known, by its own scopes."""
    if held.category == "arguments":
        return _buffer(held, held.op_name, None, held.category)
    return _buffer(held, own_scope(held.op_name), None, held.category)


def _buffer(held: Held, name: str, known: Named | None, category: str) -> Buffer:
    dtype = DTYPES.get(held.shape.dtype, held.shape.dtype)
    return Buffer(
        n=1,
        bytes=held.bytes,
        shape=f"{dtype}[{','.join(map(str, held.shape.dims))}]",
        name=name,
        letters=f"[{','.join(known.letters)}]" if known else "",
        category=category,
        scope=held.scope or own_scope(held.op_name),
    )


def _named(
    array: Array, sizes: Mapping[str, int], mesh: Mapping[str, int], category: str, scope: str = ""
) -> Named:
    """An array as the table lays it out, with the dims that one chip has."""
    dims = []
    for dim in array.dims:
        cut = math.prod(mesh[axis] for axis in dim.axes)
        dims.append(-(-int(sizes[dim.name]) // cut))
    word = PLACES.get(array.base, array.base)
    scopes = (scope, "attn.core") if scope in CORE else (scope,)
    return Named(
        name=f"gradient of {word}" if array.gradient_of else word,
        scopes=scopes if scope else ("unembed", "loss") if category == "logits" else (),
        letters=tuple(d.name for d in array.dims),
        dims=tuple(dims),
        category=category,
    )


def _chunk(logits: Named, n: int) -> Named:
    """Logits of a part of the tokens."""
    B, T, V = logits.dims
    return replace(logits, letters=("BT", "V"), dims=(B * T // n, V))


def _stacked(matmul: Matmul, mesh: Mapping[str, int]) -> list[Named]:
    """The weight of a product in all layers of a stage: as it is held, and gathered."""
    weight = matmul.program.einsum.right
    found = []
    for array in (weight, matmul.program.local.right):
        if array.name == weight.name:
            one = _named(array, matmul.sizes, mesh, "gradients")
            found.append(_of_layers(one, max(1, matmul.count // mesh["pipe"])))
    return found


def _of_layers(one: Named, n: int) -> Named:
    return Named(
        name=one.name,
        scopes=(),
        letters=("L", *one.letters),
        dims=(n, *one.dims),
        category=one.category,
        kept=n,
    )


def _like(known: Sequence[Named], held: Held) -> list[Named]:
    """Arrays with these dims; where none has them in this order, in another one, since a compiler
    lays dims out as it likes."""
    dims = tuple(d for d in held.shape.dims if d > 1)
    own = [tuple(d for d in n.dims if d > 1) for n in known]
    fits = [n for n, d in zip(known, own, strict=True) if d == dims]
    return fits or [n for n, d in zip(known, own, strict=True) if sorted(d) == sorted(dims)]


def _state(op_name: str) -> str:
    """`state['moments'][0].mu['layers'][0]['w_up']` -> `w_up of moments`."""
    found = re.findall(r"\['(\w+)'\]", op_name)
    return f"{found[-1]} of {found[0]}" if len(found) > 1 else ""
