"""A mesh of chips in NumPy: run the moves and the local product of a program on real blocks.

Nothing here looks at how the program was derived. Every chip holds a block and knows its mesh
coordinates; a move joins or cuts blocks among the chips that differ only on the move's axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from shardwise.ops.einsum import Array, Einsum
from shardwise.ops.sharded import Move, Program

Coordinates = tuple[int, ...]
Blocks = dict[Coordinates, np.ndarray]


class Machine:
    """Chips at every coordinate of a mesh."""

    def __init__(self, mesh: Mapping[str, int]) -> None:
        self.axes = tuple(mesh)
        self.mesh = dict(mesh)
        self.chips: list[Coordinates] = list(itertools.product(*(range(n) for n in mesh.values())))

    def rank(self, chip: Coordinates, axes: tuple[str, ...]) -> int:
        """Index of a chip among those that differ from it on `axes` only, the first axis major."""
        index = 0
        for axis in axes:
            index = index * self.mesh[axis] + chip[self.axes.index(axis)]
        return index

    def group(self, chip: Coordinates, axes: tuple[str, ...]) -> list[Coordinates]:
        """The chips that differ from `chip` on `axes` only, in the order of their ranks."""
        fixed = [i for i, a in enumerate(self.axes) if a not in axes]
        same = [c for c in self.chips if all(c[i] == chip[i] for i in fixed)]
        return sorted(same, key=lambda c: self.rank(c, axes))

    def size(self, axes: tuple[str, ...]) -> int:
        return int(np.prod([self.mesh[a] for a in axes], dtype=int))

    def part(self, block: np.ndarray, dim: int, axes: tuple[str, ...], chip: Coordinates):
        """The piece of a block that falls to a chip when `axes` cut it along `dim`."""
        return np.split(block, self.size(axes), axis=dim)[self.rank(chip, axes)]

    def scatter(self, dense: np.ndarray, array: Array) -> Blocks:
        """A whole array in the layout that `array` writes: I_XY is cut by X, then by Y."""
        blocks = {}
        for chip in self.chips:
            block = dense
            for position, dim in enumerate(array.dims):
                block = self.part(block, position, dim.axes, chip)
            blocks[chip] = block
        return blocks

    def run(self, program: Program, left: np.ndarray, right: np.ndarray) -> Blocks:
        """What every chip holds after the program."""
        einsum, held = program.einsum, []
        for array, dense in zip(einsum.inputs, (left, right), strict=True):
            blocks = self.scatter(dense, array)
            for move in program.before:
                if move.before.name == array.name:
                    blocks = self.move(move, blocks)
            held.append(blocks)
        equation = letters(einsum)
        out = {c: np.einsum(equation, held[0][c], held[1][c]) for c in self.chips}
        for move in program.after:
            out = self.move(move, out)
        return out

    def move(self, move: Move, blocks: Blocks) -> Blocks:
        return {chip: getattr(self, f"_{move.kind}")(move, blocks, chip) for chip in self.chips}

    def _all_gather(self, move: Move, blocks: Blocks, chip: Coordinates) -> np.ndarray:
        ((dim, axes),) = changed(move.before, move.after)
        assert set(axes) == set(move.axes)
        return np.concatenate([blocks[c] for c in self.group(chip, axes)], axis=dim)

    def _slice(self, move: Move, blocks: Blocks, chip: Coordinates) -> np.ndarray:
        block = blocks[chip]
        for dim, axes in changed(move.after, move.before):
            block = self.part(block, dim, axes, chip)
        return block

    def _all_reduce(self, move: Move, blocks: Blocks, chip: Coordinates) -> np.ndarray:
        return sum(blocks[c] for c in self.group(chip, move.axes))

    def _reduce_scatter(self, move: Move, blocks: Blocks, chip: Coordinates) -> np.ndarray:
        ((dim, axes),) = changed(move.after, move.before)
        assert set(axes) == set(move.axes)
        return self.part(self._all_reduce(move, blocks, chip), dim, axes, chip)

    def _all_to_all(self, move: Move, blocks: Blocks, chip: Coordinates) -> np.ndarray:
        ((source, axes),) = changed(move.before, move.after)
        ((target, same),) = changed(move.after, move.before)
        assert set(axes) == set(same) == set(move.axes)
        sent = [self.part(blocks[c], target, axes, chip) for c in self.group(chip, axes)]
        return np.concatenate(sent, axis=source)


def changed(more: Array, less: Array) -> list[tuple[int, tuple[str, ...]]]:
    """(dim, axes) of the axes that shard `more` and not `less`, in the order in which they cut."""
    found = []
    for position, (a, b) in enumerate(zip(more.dims, less.dims, strict=True)):
        axes = tuple(x for x in a.axes if x not in b.axes)
        if axes:
            found.append((position, axes))
    return found


def letters(einsum: Einsum) -> str:
    """The einsum for NumPy: `ij,jk->ik`."""
    to = {name: chr(ord("a") + i) for i, name in enumerate(einsum.dims)}
    left, right, output = ("".join(to[n] for n in a.names) for a in (*einsum.inputs, einsum.output))
    return f"{left},{right}->{output}"


def differences(program: Program, mesh: Mapping[str, int], sizes: Mapping[str, int]) -> list[str]:
    """Chips that do not end with their block of the dense product. Partial sums count together."""
    einsum, machine = program.einsum, Machine(mesh)
    rng = np.random.default_rng(0)
    left, right = (
        rng.integers(-9, 9, [sizes[n] for n in a.names]).astype(float) for a in einsum.inputs
    )
    want = machine.scatter(np.einsum(letters(einsum), left, right), einsum.output)
    got = machine.run(program, left, right)
    return list(_wrong(machine, einsum.output, got, want))


def _wrong(machine: Machine, output: Array, got: Blocks, want: Blocks) -> Iterator[str]:
    for chip in machine.chips:
        block = sum(got[c] for c in machine.group(chip, output.partial))
        if block.shape != want[chip].shape:
            yield f"chip {chip}: shape {block.shape}, not {want[chip].shape}"
        elif not np.array_equal(block, want[chip]):
            yield f"chip {chip}: other numbers"
