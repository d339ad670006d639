"""How a weight is laid out in a tensor of a published checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardwise.models.weights import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSlice:
    """Every `step`-th index from `start` up to but not including `stop`, along one axis."""

    axis: int
    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Layout of a weight in a tensor of a checkpoint.

    To get the weight, reshape the tensor to `view`, take the slice `part`, transpose by `axes` and
    reshape to `shape`.

    Args:
        tensor_name: Name of the tensor. "{layer}" stands for the layer index; "{expert}" stands for
            the expert index if each expert has a separate tensor.
        file_shape: Shape of the tensor in the file.
        view: Shape of the tensor after fused dims are split, for instance N x H into N, H.
        part: Slice of a fused tensor that holds the weight; None if it holds nothing else.
        axes: Permutation of the sliced axes, as in `numpy.transpose`.
        shape: Shape of the weight; of one expert's weight if experts have separate tensors.
    """

    tensor_name: str
    file_shape: tuple[int, ...]
    view: tuple[int, ...]
    part: AxisSlice | None = None
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def per_expert(self) -> bool:
        """Whether each expert has a separate tensor; the weight stacks them on axis 0."""
        return "{expert}" in self.tensor_name

    def extract(self, tensor: Any) -> Any:
        """Return the weight that a tensor of the file holds; NumPy and JAX arrays work."""
        return self._weight_view(tensor).reshape(self.shape)

    def insert(self, tensor: Any, weight: Any) -> None:
        """Write a weight into a contiguous array of shape `file_shape`; inverse of `extract`."""
        weight_view = self._weight_view(tensor)
        weight_view[...] = weight.reshape(weight_view.shape)

    def _weight_view(self, tensor: Any) -> Any:
        array = tensor.reshape(self.view)
        if self.part:
            indices = slice(self.part.start, self.part.stop, self.part.step)
            array = array[(slice(None),) * self.part.axis + (indices,)]
        return array.transpose(self.axes)


def default_layout(weight: Weight, tensor_name: str) -> TensorLayout:
    """Layout that PyTorch modules use: `linear_layout` for matrices, else `untransposed_layout`."""
    if weight.matmul:
        return linear_layout(weight, tensor_name)
    return untransposed_layout(weight, tensor_name)


def untransposed_layout(weight: Weight, tensor_name: str) -> TensorLayout:
    """Layout of a tensor whose dims have the weight's order; a vector of all heads is [N x H]."""
    file_shape = weight.shape
    if not weight.matmul and weight.dims[0] in "NK":
        file_shape = (math.prod(weight.shape),)
    return _ordered_layout(weight, tensor_name, file_shape)


def conv1d_layout(weight: Weight, tensor_name: str) -> TensorLayout:
    """Layout that the Conv1D modules of GPT-2 use: matrices are [inputs, outputs]."""
    if not weight.matmul:
        return untransposed_layout(weight, tensor_name)
    inputs, outputs = input_output_shapes(weight)
    return _ordered_layout(weight, tensor_name, (math.prod(inputs), math.prod(outputs)))


def _ordered_layout(weight: Weight, tensor_name: str, file_shape: tuple[int, ...]) -> TensorLayout:
    return TensorLayout(
        tensor_name=tensor_name,
        file_shape=file_shape,
        view=weight.shape,
        axes=tuple(range(len(weight.shape))),
        shape=weight.shape,
    )


def linear_layout(weight: Weight, tensor_name: str) -> TensorLayout:
    """Layout that torch.nn.Linear uses: [outputs, inputs], without a leading expert dim."""
    inputs, outputs = input_output_shapes(weight)
    view = (*outputs, *inputs)
    return TensorLayout(
        tensor_name=tensor_name,
        file_shape=(math.prod(outputs), math.prod(inputs)),
        view=view,
        axes=inputs_first(view, len(outputs)),
        shape=(*inputs, *outputs),
    )


def input_output_shapes(weight: Weight) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of a matrix's contracting dims and of its output dims, without a leading expert dim.

    The contracting dims are N, H for an output projection of attention, else the first dim.
    """
    first_input = int(weight.per_expert)
    first_output = first_input + 1
    if weight.dims[first_input] == "N":
        first_output += 1
    return weight.shape[first_input:first_output], weight.shape[first_output:]


def inputs_first(view: tuple[int, ...], n_outputs: int) -> tuple[int, ...]:
    """Permutation that puts the input axes of a [outputs, inputs] view first."""
    return (*range(n_outputs, len(view)), *range(n_outputs))
