"""FLOPs of attention kernels, which a compiled program holds as opaque calls.

Splash attention (the Pallas kernel that comes with JAX) takes queries [.., N, T, H], keys
[.., K, S, H], and tables of blocks [.., rows of blocks, blocks of a row], unless every key is seen.
Blocks outside the mask are skipped, those on its edge are computed whole. A table as wide as the
keys is causal; a narrower one a sliding window (or chunks, whose share is smaller: then this is
an upper bound).

cuDNN's flash attention on GPUs takes queries [B, T, N, H] and keys [B, S, K, H]; its mask stands in
the settings of the call, and edges count as whole tiles, as plans count them.
"""

from __future__ import annotations

import math

from shardwise.check.hlo.costs import Cost
from shardwise.check.hlo.shape import HBM, Shape, shapes
from shardwise.check.hlo.text import Instruction
from shardwise.estimate.kernels import tiled_keys
from shardwise.estimate.training.chip_rates import GPU_MASK_TILE

# Products for each block of scores, as wide as a head of queries, and of values: forward s, and o;
# backward with one kernel s dk dq, and dv dp; with two, each makes s and dp for itself.
_FORWARD, _OF_QUERIES, _OF_ALL, _OF_KEYS = (1, 1), (2, 1), (3, 2), (2, 2)
_PRODUCTS = {
    "splash_mha_fwd": _FORWARD,
    "splash_mqa_fwd": _FORWARD,
    "splash_mha_dq": _OF_QUERIES,
    "splash_mqa_dq": _OF_QUERIES,
}
_CUDNN = {"__cudnn$fmhaSoftmax": _FORWARD, "__cudnn$fmhaSoftmaxBackward": _OF_ALL}
_DKV = ("splash_mha_dkv", "splash_mqa_dkv")


def attention_cost(one: Instruction) -> Cost | None:
    """FLOPs and bytes of a call of attention, None for any other instruction.

    Operands count as read from HBM: the call does not say where they lie.
    """
    products, large = _products(one), _large(one)
    if products is None or len(large) < 3:
        return None
    queries, keys, values = (shape.dims for shape in large[:3])
    if _target(one) in _CUDNN:
        scores = math.prod(queries[:-1]) * _seen_by_cudnn(one, keys[1])
    else:
        scores = math.prod(queries[:-1]) * keys[-2] * _seen(_arguments(one), queries, keys)
    results = sum(s.padded_bytes for s in one.shapes if s.memory_space == HBM)
    return Cost(
        flops=round(2 * scores * (products[0] * queries[-1] + products[1] * values[-1])),
        elementwise=round(scores),
        hbm_bytes=sum(s.bytes for s in _arguments(one)) + results,
        dtype=large[0].dtype,
    )


def head_width(one: Instruction) -> int:
    """Dims of one head of an attention kernel, 0 of any other instruction."""
    large = _large(one) if _products(one) is not None else []
    return large[0].dims[-1] if large else 0


def _products(one: Instruction) -> tuple[int, int] | None:
    if _target(one) in _CUDNN:
        return _CUDNN[_target(one)]
    if _target(one) != "tpu_custom_call":
        return None
    if any(name in one.op_name for name in _DKV):
        # Where one kernel makes all gradients, that of the queries comes once per block of keys.
        apart = max(len(s.dims) for s in one.shapes) > _rank(one)
        return _OF_ALL if apart else _OF_KEYS
    found = [n for name, n in _PRODUCTS.items() if name in one.op_name]
    return found[0] if found else None


def _target(one: Instruction) -> str:
    return one.word("custom_call_target") if one.opcode == "custom-call" else ""


def _seen_by_cudnn(one: Instruction, n_keys: int) -> float:
    """Keys of a query in computed tiles, in the mean over queries."""
    told = one.backend.get("cudnn_fmha_backend_config", {})
    if "CAUSAL" not in told.get("mask_type", ""):
        return n_keys
    width = min(int(told.get("sliding_window_length", 0)), n_keys) or n_keys
    visible = width - (width - 1) * width / (2 * n_keys)
    edges = 1 if 2 * visible >= n_keys else 2
    return min(n_keys, float(tiled_keys(visible, edges, GPU_MASK_TILE)))


def _large(one: Instruction) -> list[Shape]:
    """Queries, keys, values, ...: not the tables, which are of whole numbers."""
    return [s for s in _arguments(one) if len(s.dims) >= 3 and s.dtype in ("bf16", "f32", "f16")]


def _rank(one: Instruction) -> int:
    return max((len(s.dims) for s in _arguments(one)), default=0)


def _arguments(one: Instruction) -> tuple[Shape, ...]:
    """Shapes of the operands, as the call states them."""
    start = one.attributes.find("operand_layout_constraints={")
    end = one.attributes.find("frontend_attributes=", start)
    return shapes(one.attributes[start : end if end > 0 else None]) if start >= 0 else ()


def _seen(arguments: tuple[Shape, ...], queries: tuple[int, ...], keys: tuple[int, ...]) -> float:
    """Share of the blocks of scores that are computed.

    Of a chip with a part of the queries, the mean of all such chips: paired chunks give each that.
    """
    tables = [s for s in arguments if s.dtype in ("s8", "s16", "s32") and len(s.dims) == 3]
    if not tables:
        return 1.0
    rows, wide = tables[0].dims[-2:]
    if rows == 0 or queries[-2] > keys[-2] or not _is_masked(arguments, len(tables)):
        return 1.0
    every = rows * keys[-2] // queries[-2]  # as many rows of blocks have all queries
    return sum(min(row + 1, wide) for row in range(every)) / every**2


def _is_masked(arguments: tuple[Shape, ...], n_tables: int) -> bool:
    """Whether the kernel makes or takes a mask: a table may also say that all blocks are whole.

    Positions of queries are one more array of whole numbers, segments of a sequence two; a mask
    that lies in memory has tables of its own.
    """
    positions = [s for s in arguments if s.dtype == "s32" and len(s.dims) == 2]
    return n_tables > 2 or len(positions) % 2 == 1
