"""What tiles and other units cost: whole tiles of products, of masks, exponentials of attention.

Each SM computes one tile at a time, so an output of fewer tiles than whole waves leaves SMs idle,
and an edge leaves part of a tile empty. Source: NVIDIA, Matrix Multiplication Background User's
Guide, "Tile Quantization" and "Wave Quantization".
"""

from __future__ import annotations

from shardwise.arrays import Num, ceil_div, maximum, minimum

# (rows, columns, rate against the largest): small tiles load more bytes for a product. The same
# guide, "Tile Efficiency": 256 x 128 is fastest, 128 x 128 close behind.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95))


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
USUAL_HEAD = 128.0
FLOPS_OF_SCORE = 4.0  # for each element of a head: a multiply and an add in each of two products


def head_share(d_head: Num, flops_per_clock: Num) -> Num:
    """Rate of attention in tiles with heads of d, against that with heads of 128.

    A score costs 4 d FLOPs and one exponential (FlashAttention-3, arXiv 2407.08608, section 2.2):
    the narrower the heads, the more of the time goes to exponentials.

    Args:
        d_head: d.
        flops_per_clock: dense 16-bit FLOPs of one SM in one clock.

    >>> head_share(64, 4096.0)
    0.75
    """
    even = flops_per_clock / (FLOPS_OF_SCORE * EXPONENTIALS)
    return d_head / (d_head + even) * (USUAL_HEAD + even) / USUAL_HEAD


def tiled_keys(visible: Num, edges: Num, tile: Num) -> Num:
    """Keys of a query that whole tiles compute: half a tile more at each edge of the mask.

    Args:
        visible: keys that the mask leaves, mean over queries.
        edges: 1 for a causal mask, 2 where a window cuts the other side too.
        tile: keys, and queries, of one tile.
    """
    return visible + edges * tile / 2
