"""How an array lies in memory: the order of its dims, its tiles, its padding, its memory."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.hlo.shape import HBM, HOST, SMEM, VMEM, Shape
from shardwise.check.hlo.text import Module

_TPU_MEMORIES = {HBM: "HBM", VMEM: "VMEM", HOST: "host memory", SMEM: "SMEM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayInMemory:
    """An array and its layout.

    Args:
        name: the instruction that computes it.
        shape: dtype and dims, `bf16[32,32,8192]`.
        layout: the text of the layout, `2,1,0:T(8,128)(2,1)S(1)`; "" if the text has none.
        minor_to_major: dims in the order of memory; the first has adjacent elements.
        tiles: sizes of nested tiles, outermost first.
        tiled_dims: dims from major to minor, rounded up to whole tiles; () without tiles.
        memory: `HBM`, `VMEM`, `SMEM`, `host memory`; on other machines than TPUs, `memory`.
        memory_space: the number of the memory in the layout; 0 if it has none.
        bytes: bytes of the elements.
        padded_bytes: bytes of whole tiles.
    """

    name: str
    shape: str
    dims: tuple[int, ...]
    layout: str
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[str, ...], ...]
    tiled_dims: tuple[int, ...]
    memory: str
    memory_space: int
    bytes: int
    padded_bytes: int

    @property
    def padding(self) -> float:
        """Bytes of padding for each byte of an element: 0.5 is half as much again."""
        return self.padded_bytes / self.bytes - 1 if self.bytes else 0.0


def array_in_memory(module: Module, name: str, shape: Shape) -> ArrayInMemory:
    """Describe an array of a program."""
    memory = "host memory" if shape.memory_space == HOST else "memory"
    if module.tiled:
        memory = _TPU_MEMORIES.get(shape.memory_space, f"memory space {shape.memory_space}")
    return ArrayInMemory(
        name=name,
        shape=str(shape),
        dims=shape.dims,
        layout=shape.layout,
        minor_to_major=shape.minor_to_major,
        tiles=shape.tiles,
        tiled_dims=shape.tiled_dims,
        memory=memory,
        memory_space=shape.memory_space,
        bytes=shape.bytes,
        padded_bytes=shape.padded_bytes,
    )
