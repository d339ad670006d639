"""What tiles and other units cost: whole tiles of products, of masks, exponentials of attention.

Each SM computes one tile at a time, so an output of fewer tiles than whole waves leaves SMs idle,
and an edge leaves part of a tile empty. Source: NVIDIA, Matrix Multiplication Background User's
Guide, "Tile Quantization" and "Wave Quantization".
"""

from __future__ import annotations

from shardwise.arrays import Num, ceil_div, maximum, minimum
from shardwise.hardware import Chip
from shardwise.hardware.chip import get

# (rows, columns, rate against the largest): small tiles load more bytes for a product. The same
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


def tile_share(rows: Num, columns: Num, units: Num, groups: Num = 1) -> Num:
    """Share of its best rate at which one product runs, at most 1.

    Args:
        rows, columns: of the output on this chip.
        units: SMs.
        groups: products of this shape that run in one go, as those of experts do.

    >>> round(tile_share(2048, 5376, 108), 2)  # 672 small tiles in 7 waves of 108
    0.84
    >>> tile_share(8192, 8192, 1)
    1.0
    """
    best: Num = 0.0
    for tall, wide, rate in TILES:
        tiles = groups * ceil_div(rows, tall) * ceil_div(columns, wide)
        useful = groups * rows * columns / (tall * wide)
        best = maximum(best, rate * useful / (ceil_div(tiles, units) * units))
    return minimum(best, 1.0)


EXPONENTIALS = 16.0  # a clock and SM: CUDA programming guide, arithmetic throughput, 7.0 to 10.0
# Clocks of a tile beside its sum: the first loads (about 800 to HBM) and writing 64 KB of output at
# an SM's share of L2 (about 24 bytes a clock on Hopper), half of it under the next tile.
TILE_CLOCKS = 2000.0


def depth_share(depth: Num, flops_per_clock: Num) -> Num:
    """Share of a tile's time that is its sum: short sums pay its start and end more dearly.

    Args:
        depth: k.
        flops_per_clock: FLOPs of one SM in one clock at the dtype of the product.

    >>> round(depth_share(4096, 4096.0), 3)
    0.97
    """
    tall, wide, _ = TILES[0]
    clocks = 2 * tall * wide * depth / flops_per_clock
    return clocks / (clocks + TILE_CLOCKS)


USUAL_HEAD = 128.0
FLOPS_OF_SCORE = 4.0  # for each element of a head: a multiply and an add in each of two products


def head_share(
    d_head: Num, flops_per_clock: Num, exponentials: Num = EXPONENTIALS, narrow: Num = 1.0
) -> Num:
    """Rate of attention in tiles with heads of d, against that of usual heads and units.

    A score costs 4 d FLOPs and one exponential (FlashAttention-3, arXiv 2407.08608, section 2.2):
    the narrower the heads, the more of the time goes to exponentials. Products in 8 bits make the
    FLOPs faster and leave the exponentials as they are.

    Args:
        d_head: d.
        flops_per_clock: dense 16-bit FLOPs of one SM in one clock.
        exponentials: of one SM in one clock.
        narrow: rate of the products against that of 16 bits.

    >>> head_share(64, 4096.0)
    0.75
    >>> round(head_share(128, 8192.0, narrow=2.0), 2)
    1.33
    """
    usual = FLOPS_OF_SCORE * USUAL_HEAD / flops_per_clock + 1 / EXPONENTIALS
    here = FLOPS_OF_SCORE * d_head / (narrow * flops_per_clock) + 1 / exponentials
    return d_head / USUAL_HEAD * usual / here


def tiled_keys(visible: Num, edges: Num, tile: Num) -> Num:
    """Keys of a query that whole tiles compute: half a tile more at each edge of the mask.

    Args:
        visible: keys that the mask leaves, mean over queries.
        edges: 1 for a causal mask, 2 where a window cuts the other side too.
        tile: keys, and queries, of one tile.
    """
    return visible + edges * tile / 2


# Products through warp-level mma.sync reach 62.9 % of Hopper's peak, which needs wgmma (arXiv
# 2402.13499, section on tensor cores); Blackwell runs them no wider.
WARP_FLOPS = 0.63 * 4096


def warp_share(flops_per_clock: Num) -> Num:
    """Share of the matrix rate open to kernels written for Ampere: FlashAttention-2.

    >>> warp_share(2048.0)
    1.0
    """
    return minimum(1.0, WARP_FLOPS / flops_per_clock)


# A chip under full load runs as fast as its power allows. Power goes with f V^2: f^3 where voltage
# follows the clock, f where it is at its floor; between the two, f goes with the root.
POWER_EXPONENT = 0.5


def power_share(watts: Num, usual_watts: Num) -> Num:
    """Clock under a power limit, against the usual one, at most 1.

    >>> power_share(175.0, 700.0)
    0.5
    """
    return minimum(1.0, (watts / usual_watts) ** POWER_EXPONENT)
