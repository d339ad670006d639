"""One weight as a tensor, or a part of one, in a published checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardwise.models.weights import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Every `step`-th index from `start` to before `stop` along one axis."""

    axis: int
    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where a weight stands in a checkpoint, and how to make ours of what stands there.

    The tensor is viewed as `view`, `part` is taken of it, its axes are put in the order `axes`,
    and what comes is viewed as `shape`.

    Args:
        tensor: Its name, with {layer} for the number of the layer and {expert} for that of the
            expert where each has a tensor of its own.
        held: Shape in the file.
        view: The same elements with fused dims apart.
        part: What of a fused tensor it is; None for all.
        axes: For each axis of the outcome the axis of the part, as of `numpy.transpose`.
        shape: Shape of our weight, of one expert where `tensor` names one.
    """

    tensor: str
    held: tuple[int, ...]
    view: tuple[int, ...]
    part: Part | None = None
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def per_expert(self) -> bool:
        """Each expert has its own tensor; ours stacks them on a first axis."""
        return "{expert}" in self.tensor

    def ours(self, tensor: Any) -> Any:
        """Our weight out of a tensor of the file; any array with the methods of NumPy's."""
        array = tensor.reshape(self.view)
        if self.part:
            taken = slice(self.part.start, self.part.stop, self.part.step)
            array = array[(slice(None),) * self.part.axis + (taken,)]
        return array.transpose(self.axes).reshape(self.shape)

    def put(self, tensor: Any, ours: Any) -> None:
        """Write our weight to where `ours` finds it; `tensor` is contiguous, of shape `held`."""
        array = tensor.reshape(self.view)
        if self.part:
            taken = slice(self.part.start, self.part.stop, self.part.step)
            array = array[(slice(None),) * self.part.axis + (taken,)]
        turned = array.transpose(self.axes)
        turned[...] = ours.reshape(turned.shape)


def stored(weight: Weight, tensor: str) -> Stored:
    """A matrix as a torch.nn.Linear holds it, anything else as it is."""
    return linear(weight, tensor) if weight.matmul else same(weight, tensor)


def same(weight: Weight, tensor: str) -> Stored:
    """A tensor in our order of dims, in the file with heads and their widths as one dim."""
    shape = weight.shape
    return Stored(
        tensor=tensor,
        held=(math.prod(shape),) if not weight.matmul and weight.dims[0] in "NK" else shape,
        view=shape,
        axes=tuple(range(len(shape))),
        shape=shape,
    )


def turned(weight: Weight, tensor: str) -> Stored:
    """A matrix of [inputs, outputs], which is our order; anything else as it is."""
    if not weight.matmul:
        return same(weight, tensor)
    inputs, outputs = ends(weight)
    return Stored(
        tensor=tensor,
        held=(math.prod(inputs), math.prod(outputs)),
        view=weight.shape,
        axes=tuple(range(len(weight.shape))),
        shape=weight.shape,
    )


def linear(weight: Weight, tensor: str) -> Stored:
    """A matrix of [outputs, inputs], as a torch.nn.Linear holds it; of one expert if E leads."""
    inputs, outputs = ends(weight)
    view = (*outputs, *inputs)
    return Stored(
        tensor=tensor,
        held=(math.prod(outputs), math.prod(inputs)),
        view=view,
        axes=inputs_first(view, len(outputs)),
        shape=(*inputs, *outputs),
    )


def ends(weight: Weight) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of the dims that a matrix reads and of those that it writes, without the expert."""
    first = 1 if weight.dims[0] == "E" else 0
    split = first + (2 if weight.dims[first] == "N" else 1)
    return weight.shape[first:split], weight.shape[split:]


def inputs_first(view: tuple[int, ...], n_outputs: int) -> tuple[int, ...]:
    """The axes of [outputs, inputs] with inputs in front."""
    return (*range(n_outputs, len(view)), *range(n_outputs))
