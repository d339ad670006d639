"""Efficiency of GPU kernels: tile and wave quantization, masks, exponentials of attention.

Each SM computes one tile of the output at a time. SMs idle in the last wave unless it is full, and
a tile at an edge of the output is partly empty. Source: NVIDIA, Matrix Multiplication Background
User's Guide, "Tile Quantization" and "Wave Quantization".
"""

from __future__ import annotations

from shardwise.arrays import Num, ceil_div, maximum, minimum, where
from shardwise.hardware import Chip
from shardwise.hardware.chip import get

# (rows, columns, rate relative to the fastest tile). Small tiles are slower because they load more
# bytes per FLOP. The same guide, "Tile Efficiency": 256 x 128 is fastest, 128 x 128 close behind.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95))


DEFAULT_CLOCK_HZ = 1.8e9  # for GPUs whose file does not state a clock


def sm_count(chip: Chip) -> float:
    """Number of streaming multiprocessors of a GPU; 0 if the chip's file does not state it."""
    return _number(chip, "sm.count", 0.0)


def sm_clocks_per_s(chip: Chip) -> float:
    """Clock cycles of all SMs per second; 0 if the number of SMs is unknown."""
    return sm_count(chip) * _number(chip, "core.clock", DEFAULT_CLOCK_HZ)


def _number(chip: Chip, name: str, default: float) -> float:
    """The number in the chip's file with a dotted name, or the default if it is not stated."""
    value = get(chip, name)
    return float(value) if isinstance(value, int | float) else default


def tile_efficiency(rows: Num, columns: Num, n_sms: Num, groups: Num = 1) -> Num:
    """Rate of a matmul that runs in whole tiles and waves, relative to its best rate, at most 1.

    The kernel is assumed to use the best of the tile shapes in `TILES`.

    Args:
        rows: rows of the output on this chip.
        columns: columns of the output on this chip.
        n_sms: number of SMs.
        groups: number of matmuls of this shape that run as one grouped matmul.

    >>> round(tile_efficiency(2048, 5376, 108), 2)  # 672 small tiles in 7 waves of 108
    0.84
    >>> tile_efficiency(8192, 8192, 1)
    1.0
    """
    best: Num = 0.0
    for tile_rows, tile_columns, rate in TILES:
        n_tiles = groups * ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns)
        useful_tiles = groups * rows * columns / (tile_rows * tile_columns)
        best = maximum(best, rate * useful_tiles / (ceil_div(n_tiles, n_sms) * n_sms))
    return minimum(best, 1.0)


def matrix_unit_efficiency(columns: Num, depth: Num, side: Num) -> Num:
    """Share of a TPU's matrix unit that a matmul fills: its dims are padded to whole units.

    Args:
        columns: columns of the output on this chip.
        depth: size of the contracted dim on this chip.
        side: side of the matrix unit.

    >>> round(matrix_unit_efficiency(2880, 2880, 256), 2)
    0.88
    >>> matrix_unit_efficiency(4096, 14336, 128)
    1.0
    """
    padded = ceil_div(columns, side) * ceil_div(depth, side) * side**2
    return columns * depth / padded


# Exponentials that one SM computes per clock cycle: CUDA programming guide, arithmetic throughput,
# compute capabilities 7.0 to 10.0.
EXPONENTIALS = 16.0
# Clock cycles of a tile outside its main loop: about 800 for the first loads from HBM, and those of
# writing 64 KB of output at an SM's share of L2 bandwidth (about 24 bytes per cycle on Hopper), of
# which half overlaps with the next tile.
TILE_CLOCKS = 2000.0


def depth_efficiency(depth: Num, flops_per_clock: Num) -> Num:
    """Fraction of a tile's time that is spent in its main loop; it grows with the contracted dim.

    Args:
        depth: size of the contracted dim, k.
        flops_per_clock: peak FLOPs of one SM per clock cycle at the matmul's dtype.

    >>> round(depth_efficiency(4096, 4096.0), 3)
    0.97
    """
    tile_rows, tile_columns, _ = TILES[0]
    clocks = 2 * tile_rows * tile_columns * depth / flops_per_clock
    return clocks / (clocks + TILE_CLOCKS)


REFERENCE_HEAD_DIM = 128.0
SCORE_FLOPS = 4.0  # per score and element of a head: a multiply and an add in each of two matmuls


def head_dim_efficiency(
    d_head: Num, flops_per_clock: Num, exponentials: Num = EXPONENTIALS, speedup: Num = 1.0
) -> Num:
    """FLOP/s of tiled attention at a head dim, relative to those in 16 bits at head dim 128.

    Each score costs 4 d FLOPs and one exponential (FlashAttention-3, arXiv 2407.08608, section
    2.2). The smaller the head dim, the larger the fraction of time spent on exponentials. 8-bit
    matmuls speed up the FLOPs but not the exponentials.

    Args:
        d_head: head dim d.
        flops_per_clock: peak dense 16-bit FLOPs of one SM per clock cycle.
        exponentials: exponentials that one SM computes per clock cycle.
        speedup: rate of the matmuls relative to 16-bit matmuls.

    >>> head_dim_efficiency(64, 4096.0)
    0.75
    >>> round(head_dim_efficiency(128, 8192.0, speedup=2.0), 2)
    1.33
    """
    reference = SCORE_FLOPS * REFERENCE_HEAD_DIM / flops_per_clock + 1 / EXPONENTIALS
    clocks = SCORE_FLOPS * d_head / (speedup * flops_per_clock) + 1 / exponentials
    return d_head / REFERENCE_HEAD_DIM * reference / clocks


ATTENTION_ROWS = 128  # queries of one tile of attention on a GPU: FlashAttention-2 and -3


def attention_depth_efficiency(
    keys: Num, d_head: Num, flops_per_clock: Num, exponentials: Num = EXPONENTIALS
) -> Num:
    """Fraction of an attention tile's time that is spent on its keys, not on its start and end.

    Args:
        keys: keys that the queries of a tile visit, on average.
        d_head: head dim d.
        flops_per_clock: peak dense 16-bit FLOPs of one SM per clock cycle.
        exponentials: exponentials that one SM computes per clock cycle.

    >>> round(attention_depth_efficiency(2048, 128, 4096.0), 2)
    0.96
    >>> round(attention_depth_efficiency(256, 64, 4096.0), 2)  # a short window
    0.67
    """
    clocks = ATTENTION_ROWS * keys * (SCORE_FLOPS * d_head / flops_per_clock + 1 / exponentials)
    return clocks / (clocks + TILE_CLOCKS)


# Side of a tile of masked attention, in tokens: MaxText's sa_block_q and sa_block_kv; that of
# FlashAttention-2 and -3.
TPU_MASK_TILE = 512
GPU_MASK_TILE = 128
# (fewest keys, keys of a block) of attention's backward pass on a TPU; MaxText's largest for v6e
# and 7x is 2,048, too (sa_block_kv_dkv).
KEY_BLOCKS = ((16384, 2048), (4096, 1024))


def backward_key_block(n_keys: Num) -> Num:
    """Keys of a block in the backward pass of attention on a TPU.

    Splash's fused kernel writes one part of the query gradients for each block of keys, and they
    are summed afterwards; larger blocks compute more masked scores. Both cost least with blocks of
    sqrt(0.8 T I) keys, where I is the ratio of a chip's FLOP/s and HBM bandwidth: 700 keys on v5p
    and 1,400 on v6e for T = 4,096.

    >>> [backward_key_block(n) for n in (2048, 4096, 4608, 8192, 32768)]
    [512, 1024, 512, 1024, 2048]
    """
    block: Num = TPU_MASK_TILE
    for fewest_keys, size in reversed(KEY_BLOCKS):
        block = where((n_keys >= fewest_keys) & (n_keys % size == 0), size, block)
    return block


def mask_tile(kind: str, phase: str, n_keys: Num) -> Num:
    """Side of a square tile of masked attention on a kind of chip.

    Blocks of more keys than queries compute as many masked scores as squares of their keys.
    """
    if kind != "tpu":
        return GPU_MASK_TILE
    return backward_key_block(n_keys) if phase == "backward" else TPU_MASK_TILE


def tiled_keys(visible: Num, edges: Num, tile: Num) -> Num:
    """Mean keys per query that attention computes, when it computes whole tiles of scores.

    Tiles that an edge of the mask crosses are computed in full: half a tile more for each edge.

    Args:
        visible: mean number of unmasked keys per query.
        edges: edges of the mask: 1 if causal, 2 for a sliding window.
        tile: side of a square tile of scores: keys, and queries, of one tile.
    """
    return visible + edges * tile / 2


# FLOPs per clock cycle of an SM through warp-level mma.sync instructions: 62.9 % of the peak on
# Hopper, whose full rate needs wgmma (arXiv 2402.13499, section on tensor cores). Taken to be the
# same on Blackwell.
WARP_FLOPS_PER_CLOCK = 0.63 * 4096


def warp_efficiency(flops_per_clock: Num) -> Num:
    """Share of the peak matmul rate that kernels written for Ampere reach, e.g. FlashAttention-2.

    Args:
        flops_per_clock: peak 16-bit FLOPs of one SM per clock cycle.

    >>> warp_efficiency(2048.0)
    1.0
    """
    return minimum(1.0, WARP_FLOPS_PER_CLOCK / flops_per_clock)


# Exponent of clock ~ power^x for a chip whose clock is limited by power. Power is proportional to
# f V^2, so to f^3 where the voltage V follows the clock f, and to f where V is at its minimum. Real
# chips are between the two: 1/2 is taken, between 1/3 and 1.
POWER_EXPONENT = 0.5


def clock_under_power_limit(watts: Num, default_watts: Num) -> Num:
    """Clock under a power limit, relative to the clock at the default limit, at most 1.

    >>> clock_under_power_limit(175.0, 700.0)
    0.5
    """
    return minimum(1.0, (watts / default_watts) ** POWER_EXPONENT)
