"""Efficiency of GPU kernels: tile and wave quantization, masks, exponentials of attention.

Each SM computes one tile at a time, so an output of fewer tiles than whole waves leaves SMs idle,
and an edge leaves part of a tile empty. Source: NVIDIA, Matrix Multiplication Background User's
Guide, "Tile Quantization" and "Wave Quantization".
"""

from __future__ import annotations

from shardwise.arrays import Num, ceil_div, maximum, minimum
from shardwise.hardware import Chip
from shardwise.hardware.chip import get

# (rows, columns, rate relative to the largest): small tiles load more bytes per FLOP. The same
# guide, "Tile Efficiency": 256 x 128 is fastest, 128 x 128 close behind.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95))


DEFAULT_CLOCK_HZ = 1.8e9  # of a GPU whose file gives none


def sm_count(chip: Chip) -> float:
    """Streaming multiprocessors of a GPU; 0 where the chip's file gives none."""
    return _number(chip, "sm.count", 0.0)


def sm_flops_per_clock(chip: Chip, dtype: str) -> float:
    """FLOPs of one SM in one clock at a dtype; 0 where the number of SMs is unknown."""
    n_sms = sm_count(chip)
    clock_hz = _number(chip, "core.clock", DEFAULT_CLOCK_HZ)
    return chip.peak(dtype) / n_sms / clock_hz if n_sms else 0.0


def _number(chip: Chip, name: str, default: float) -> float:
    value = get(chip, name)
    return float(value) if isinstance(value, int | float) else default


def tile_efficiency(rows: Num, columns: Num, n_sms: Num, groups: Num = 1) -> Num:
    """Share of its best rate that a matmul keeps in whole tiles and waves, at most 1.

    Args:
        rows: rows of the output on this chip.
        columns: columns of the output on this chip.
        n_sms: SMs.
        groups: matmuls of this shape that run as one grouped matmul.

    >>> round(tile_efficiency(2048, 5376, 108), 2)  # 672 small tiles in 7 waves of 108
    0.84
    >>> tile_efficiency(8192, 8192, 1)
    1.0
    """
    best: Num = 0.0
    for tile_rows, tile_columns, rate in TILES:
        tiles = groups * ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns)
        useful = groups * rows * columns / (tile_rows * tile_columns)
        best = maximum(best, rate * useful / (ceil_div(tiles, n_sms) * n_sms))
    return minimum(best, 1.0)


EXPONENTIALS = 16.0  # per clock and SM: CUDA programming guide, arithmetic throughput, 7.0 to 10.0
# Clocks of a tile outside its main loop: the first loads (about 800 to HBM) and writing 64 KB of
# output at an SM's share of L2 (about 24 bytes a clock on Hopper), half of it during the next tile.
TILE_CLOCKS = 2000.0


def depth_efficiency(depth: Num, flops_per_clock: Num) -> Num:
    """Share of a tile's time that its main loop takes, the larger the longer the contraction.

    Args:
        depth: size of the contracted dim, k.
        flops_per_clock: FLOPs of one SM in one clock at the dtype of the matmul.

    >>> round(depth_efficiency(4096, 4096.0), 3)
    0.97
    """
    tile_rows, tile_columns, _ = TILES[0]
    clocks = 2 * tile_rows * tile_columns * depth / flops_per_clock
    return clocks / (clocks + TILE_CLOCKS)


REFERENCE_HEAD_DIM = 128.0
SCORE_FLOPS = 4.0  # per element of a head: a multiply and an add in each of two matmuls


def head_dim_efficiency(
    d_head: Num, flops_per_clock: Num, exponentials: Num = EXPONENTIALS, speedup: Num = 1.0
) -> Num:
    """Rate of tiled attention with this head dim, relative to head dim 128.

    A score costs 4 d FLOPs and one exponential (FlashAttention-3, arXiv 2407.08608, section 2.2):
    the smaller the head dim, the more of the time goes to exponentials. Matmuls in 8 bits speed up
    the FLOPs but not the exponentials.

    Args:
        d_head: head dim d.
        flops_per_clock: dense 16-bit FLOPs of one SM in one clock.
        exponentials: exponentials of one SM in one clock.
        speedup: rate of the matmuls relative to 16 bits.

    >>> head_dim_efficiency(64, 4096.0)
    0.75
    >>> round(head_dim_efficiency(128, 8192.0, speedup=2.0), 2)
    1.33
    """
    reference = SCORE_FLOPS * REFERENCE_HEAD_DIM / flops_per_clock + 1 / EXPONENTIALS
    clocks = SCORE_FLOPS * d_head / (speedup * flops_per_clock) + 1 / exponentials
    return d_head / REFERENCE_HEAD_DIM * reference / clocks


def tiled_keys(visible: Num, edges: Num, tile: Num) -> Num:
    """Keys per query that whole tiles compute: half a tile more at each edge of the mask.

    Args:
        visible: unmasked keys per query, on average.
        edges: 1 for a causal mask, 2 for a window, which has another edge.
        tile: keys, and queries, of one tile.
    """
    return visible + edges * tile / 2


# Matmuls through warp-level mma.sync reach 62.9 % of Hopper's peak, which needs wgmma (arXiv
# 2402.13499, section on tensor cores); Blackwell runs them no wider.
WARP_FLOPS_PER_CLOCK = 0.63 * 4096


def warp_efficiency(flops_per_clock: Num) -> Num:
    """Share of the matrix rate that kernels written for Ampere can reach (FlashAttention-2).

    >>> warp_efficiency(2048.0)
    1.0
    """
    return minimum(1.0, WARP_FLOPS_PER_CLOCK / flops_per_clock)


# A chip under full load runs as fast as its power allows. Power goes with f V^2: f^3 where voltage
# follows the clock, f where it is at its floor; between the two, f goes with the root.
POWER_EXPONENT = 0.5


def clock_under_power_limit(watts: Num, default_watts: Num) -> Num:
    """Clock under a power limit, relative to the one at the default limit, at most 1.

    >>> clock_under_power_limit(175.0, 700.0)
    0.5
    """
    return minimum(1.0, (watts / default_watts) ** POWER_EXPONENT)
