"""Torus slices of TPU pods: which slices exist, and which of their axes wrap around.

An axis that wraps around is a ring: a collective can use both directions, and the largest distance
is half that of a line. Book, "How to Think About TPUs", section on TPU networking.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.errors import BadShape
from shardwise.hardware.chip import Chip, Ici
from shardwise.hardware.shape import MAX_CHIPS, Shape, show_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A box of chips, each linked to its neighbours along every axis.

    Any shape is allowed here; `make_slice` allows only slices that exist.

    Args:
        shape: number of chips along each axis.
        wrapped: for each axis, whether a link joins its two ends.
    """

    shape: Shape
    wrapped: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1 or len(self.shape) != len(self.wrapped):
            raise BadShape(
                f"torus of shape {self.shape} with wrapped {self.wrapped}: "
                "dimensions start at 1, with one truth value for each."
            )

    def __str__(self) -> str:
        return show_shape(self.shape)

    @property
    def n_chips(self) -> int:
        """Chips in the slice."""
        return math.prod(self.shape)

    @property
    def n_axes(self) -> int:
        """Number of axes, including those of length 1."""
        return len(self.shape)

    def farthest(self, axis: int) -> int:
        """Hops to the farthest chip along one axis: n - 1 on a line, floor(n / 2) on a ring.

        >>> Torus(shape=(16,), wrapped=(True,)).farthest(0)
        8
        """
        n = self.shape[axis]
        if self.wrapped[axis]:
            return n // 2
        return n - 1


def wrap_axes(rule: str, shape: Shape, pod: Shape | None) -> tuple[bool, ...]:
    """For each axis of a slice, whether it wraps around.

    Args:
        rule: rule of the TPU generation. `cubes_of_4`: all axes wrap if the slice is made of whole
            4x4x4 cubes, else none; `length_16`: axes of 16 chips wrap; `full_pod`: all axes wrap if
            the slice is a whole pod, else none.
        shape: shape of the slice.
        pod: shape of the pod; None if unknown.
    """
    if rule == "cubes_of_4":
        return (all(n % 4 == 0 for n in shape),) * len(shape)
    if rule == "length_16":
        return tuple(n == 16 for n in shape)
    return (pod is not None and sorted(shape) == sorted(pod),) * len(shape)


def make_slice(chip: Chip, shape: Shape) -> Torus:
    """The slice of `chip` with this shape, whose dimensions may be in any order.

    Raises:
        BadShape: no such slice exists; the message names those with the nearest chip counts.
    """
    ici = _ici(chip)
    reason = _reason(chip, ici, shape)
    if reason:
        name = f"{chip.name}:{show_shape(shape)}"
        raise BadShape(f"no slice {name}: {reason} {nearest_slices(chip, math.prod(shape))}")
    return Torus(shape=shape, wrapped=wrap_axes(ici.wrap, shape, ici.pod_shape))


def legal_slices(chip: Chip) -> tuple[Torus, ...]:
    """All slices that exist, by chip count and then from compact to elongated.

    Each has one order of dimensions. If the chip's file lists no slices this is the pod alone;
    `make_slice` then allows any shape inside the pod.

    >>> from shardwise.hardware import find_chip
    >>> [str(s) for s in legal_slices(find_chip("v5e"))]
    ['1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16']
    """
    ici = _ici(chip)
    shapes = list(ici.slices)
    if ici.wrap == "cubes_of_4" and ici.pod_shape:
        shapes += _cube_shapes(ici.n_axes, math.prod(ici.pod_shape))
    if ici.pod_shape:
        shapes.append(ici.pod_shape)
    unique_shapes = {tuple(sorted(shape)): shape for shape in reversed(shapes)}
    slices = []
    for shape in sorted(unique_shapes.values(), key=lambda shape: (math.prod(shape), max(shape))):
        slices.append(Torus(shape=shape, wrapped=wrap_axes(ici.wrap, shape, ici.pod_shape)))
    return tuple(slices)


def _ici(chip: Chip) -> Ici:
    if chip.ici is None:
        raise BadShape(f"{chip.name} is not joined in a torus. Write a number of chips.")
    return chip.ici


def _cube_shapes(n_axes: int, max_chips: int) -> list[Shape]:
    """Shapes of all boxes of whole 4x4x4 cubes, with ascending dimensions.

    Optical switches can connect any cubes of a pod to such a box.
    """
    shapes: list[Shape] = [()]
    for _ in range(n_axes):
        longer_shapes = []
        for shape in shapes:
            shortest = max(shape, default=4)
            longest = max_chips // math.prod(shape)
            longer_shapes += [(*shape, n) for n in range(shortest, longest + 1, 4)]
        shapes = longer_shapes
    return shapes


def _reason(chip: Chip, ici: Ici, shape: Shape) -> str:
    """The reason why no slice has this shape; "" if one has."""
    ascending = tuple(sorted(shape))
    if len(shape) != ici.n_axes:
        return f"{len(shape)} dimensions, and the torus of {chip.name} has {ici.n_axes}."
    legal = [tuple(sorted(slice_shape)) for slice_shape in ici.slices]
    limit = MAX_CHIPS
    pod = ""
    if ici.pod_shape:
        legal.append(tuple(sorted(ici.pod_shape)))
        limit = math.prod(ici.pod_shape)
        pod = f" ({show_shape(ici.pod_shape)})"
    if ascending in legal:
        return ""
    if math.prod(shape) > limit:
        return f"{math.prod(shape):,} chips, and a pod has {limit:,}{pod}."
    if ici.wrap == "cubes_of_4":
        if all(n % 4 == 0 for n in shape):
            return ""
        small = ", ".join(map(show_shape, ici.slices))
        return f"slices are {small}, or made of whole 4x4x4 cubes."
    if ici.slices:
        return f"{chip.name} is rented only in the listed shapes."
    return ""


def nearest_slices(chip: Chip, n_chips: int, n: int = 4) -> str:
    """A sentence with the `n` slices of the nearest chip counts, one per count.

    Slices of 64 chips or more whose sides differ by more than a factor of 3 are left out.
    """
    compact: dict[int, Torus] = {}
    for torus in legal_slices(chip):
        if torus.n_chips < 64 or max(torus.shape) <= 3 * min(torus.shape):
            compact.setdefault(torus.n_chips, torus)
    near = sorted(compact.values(), key=lambda s: abs(math.log(s.n_chips / n_chips)))[:n]
    if not near:
        return ""
    names = [_counted(chip, torus) for torus in sorted(near, key=lambda torus: torus.n_chips)]
    return f"Nearest: {', '.join(names)}."


def _counted(chip: Chip, torus: Torus) -> str:
    if torus.n_chips == 1:
        return f"{chip.name}:{torus} (1 chip)"
    return f"{chip.name}:{torus} ({torus.n_chips:,} chips)"
