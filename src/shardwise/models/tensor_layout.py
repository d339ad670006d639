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

    To get the weight, reshape the tensor to `view_shape`, take `axis_slice`, transpose by `axes`
    and reshape to `shape`.

    Args:
        tensor_name: Name of the tensor. "{layer}" stands for the layer index; "{expert}" stands for
            the expert index if each expert has a separate tensor.
        file_shape: Shape of the tensor in the file.
        view_shape: Shape of the tensor after merged dims are divided, for instance N x H into N, H.
        axis_slice: The part of a fused tensor that is the weight; None if the tensor holds only
            this weight.
        axes: Permutation of all axes after slicing, as in `numpy.transpose`.
        shape: Shape of the weight; of one expert's weight if experts have separate tensors.
    """

    tensor_name: str
    file_shape: tuple[int, ...]
    view_shape: tuple[int, ...]
    axis_slice: AxisSlice | None = None
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def per_expert(self) -> bool:
        """Whether each expert has a separate tensor; the weight stacks them on axis 0."""
        return "{expert}" in self.tensor_name

    def extract(self, tensor: Any) -> Any:
        """Return the weight in a tensor of the file, which may be a NumPy or a JAX array."""
        return self._weight_view(tensor).reshape(self.shape)

    def insert(self, tensor: Any, weight: Any) -> None:
        """Write a weight into a contiguous array of shape `file_shape`; inverse of `extract`."""
        weight_view = self._weight_view(tensor)
        weight_view[...] = weight.reshape(weight_view.shape)

    def _weight_view(self, tensor: Any) -> Any:
        """The part of a tensor that is the weight, with its axes in order."""
        array = tensor.reshape(self.view_shape)
        if self.axis_slice:
            indices = slice(self.axis_slice.start, self.axis_slice.stop, self.axis_slice.step)
            array = array[(slice(None),) * self.axis_slice.axis + (indices,)]
        return array.transpose(self.axes)


def default_layout(weight: Weight, tensor_name: str) -> TensorLayout:
    """Layout that PyTorch modules use: `linear_layout` for matrices, else `untransposed_layout`."""
    if weight.is_matmul:
        return linear_layout(weight, tensor_name)
    return untransposed_layout(weight, tensor_name)


def untransposed_layout(weight: Weight, tensor_name: str) -> TensorLayout:
    """Layout of a tensor whose dims are in the order of the weight's.

    A vector with an element for each head and head dim is stored flat, as [N x H].
    """
    file_shape = weight.shape
    if not weight.is_matmul and weight.dims[0] in "NK":
        file_shape = (math.prod(weight.shape),)
    return _identity_layout(weight, tensor_name, file_shape)


def conv1d_layout(weight: Weight, tensor_name: str) -> TensorLayout:
    """Layout that the Conv1D modules of GPT-2 use: matrices are [inputs, outputs]."""
    if not weight.is_matmul:
        return untransposed_layout(weight, tensor_name)
    inputs, outputs = input_output_shapes(weight)
    return _identity_layout(weight, tensor_name, (math.prod(inputs), math.prod(outputs)))


def _identity_layout(weight: Weight, tensor_name: str, file_shape: tuple[int, ...]) -> TensorLayout:
    """Layout of a tensor that only needs a reshape to become the weight."""
    return TensorLayout(
        tensor_name=tensor_name,
        file_shape=file_shape,
        view_shape=weight.shape,
        axes=tuple(range(len(weight.shape))),
        shape=weight.shape,
    )


def linear_layout(weight: Weight, tensor_name: str) -> TensorLayout:
    """Layout of a matrix in torch.nn.Linear: [outputs, inputs].

    A weight with a leading expert dim gets the layout of one expert's matrix.
    """
    inputs, outputs = input_output_shapes(weight)
    view = (*outputs, *inputs)
    return TensorLayout(
        tensor_name=tensor_name,
        file_shape=(math.prod(outputs), math.prod(inputs)),
        view_shape=view,
        axes=inputs_first(view, len(outputs)),
        shape=(*inputs, *outputs),
    )


def input_output_shapes(weight: Weight) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of the input dims and of the output dims of a matrix; an expert dim is left out.

    Input dims are those that a matmul sums over: N, H of an output projection, else the first dim.
    """
    first_input = int(weight.per_expert)
    first_output = first_input + 1
    if weight.dims[first_input] == "N":
        first_output += 1
    return weight.shape[first_input:first_output], weight.shape[first_output:]


def inputs_first(view: tuple[int, ...], n_output_axes: int) -> tuple[int, ...]:
    """Permutation that moves the input axes of a shape (*outputs, *inputs) to the front."""
    return (*range(n_output_axes, len(view)), *range(n_output_axes))
