"""FLOPs of attention kernels, which are opaque calls in a compiled program.

Splash attention (the Pallas kernel that comes with JAX) takes queries [.., N, T, H], keys
[.., K, S, H], and tables of blocks [.., rows of blocks, blocks of a row], except under a full mask.
Blocks outside the mask are skipped, those on its edge are computed whole. A table as wide as the
keys is causal; a narrower one a sliding window (or chunks, whose share is smaller: then this is
an upper bound).

cuDNN's flash attention on GPUs takes queries [B, T, N, H] and keys [B, S, K, H]; its mask is in the
configuration of the call, and edges count as whole tiles, as in plans.
"""

from __future__ import annotations

import math

from shardwise.check.hlo.costs import Cost
from shardwise.check.hlo.shape import HBM, Shape, parse_shapes
from shardwise.check.hlo.text import Instruction
from shardwise.estimate.kernels import tiled_keys
from shardwise.estimate.training.chip_rates import GPU_MASK_TILE

# Products per block of scores: as wide as a query head, and as wide as a value head. Forward s, and
# o; backward in one kernel s dk dq, and dv dp; in two kernels, each recomputes s and dp.
_FORWARD = (1, 1)
_QUERY_GRADIENTS = (2, 1)
_KEY_GRADIENTS = (2, 2)
_ALL_GRADIENTS = (3, 2)
_SPLASH = {
    "splash_mha_fwd": _FORWARD,
    "splash_mqa_fwd": _FORWARD,
    "splash_mha_dq": _QUERY_GRADIENTS,
    "splash_mqa_dq": _QUERY_GRADIENTS,
}
_SPLASH_DKV = ("splash_mha_dkv", "splash_mqa_dkv")
_CUDNN = {"__cudnn$fmhaSoftmax": _FORWARD, "__cudnn$fmhaSoftmaxBackward": _ALL_GRADIENTS}


def attention_cost(instruction: Instruction) -> Cost | None:
    """FLOPs and bytes of an attention call, None for any other instruction.

    Operands count as read from HBM: the call does not state their memory space.
    """
    products = _products(instruction)
    tensors = _tensors(instruction)
    if products is None or len(tensors) < 3:
        return None
    queries, keys, values = (shape.dims for shape in tensors[:3])
    operands = _operand_shapes(instruction)
    if _target(instruction) in _CUDNN:
        visible_keys = _cudnn_visible_keys(instruction, keys[1])
        scores = math.prod(queries[:-1]) * visible_keys
    else:
        scores = math.prod(queries[:-1]) * keys[-2] * _visible_share(operands, queries, keys)
    hbm_bytes = sum(shape.bytes for shape in operands)
    for shape in instruction.shapes:
        if shape.memory_space == HBM:
            hbm_bytes += shape.padded_bytes
    return Cost(
        flops=round(2 * scores * (products[0] * queries[-1] + products[1] * values[-1])),
        elementwise=round(scores),
        hbm_bytes=hbm_bytes,
        dtype=tensors[0].dtype,
    )


def head_dim(instruction: Instruction) -> int:
    """Head dim of an attention kernel, 0 of any other instruction."""
    if _products(instruction) is None:
        return 0
    tensors = _tensors(instruction)
    return tensors[0].dims[-1] if tensors else 0


def _products(instruction: Instruction) -> tuple[int, int] | None:
    """Products as wide as query heads and as value heads; None of other instructions."""
    target = _target(instruction)
    if target != "tpu_custom_call":
        return _CUDNN.get(target)
    if any(name in instruction.op_name for name in _SPLASH_DKV):
        # A kernel for all gradients returns those of the queries once per block of keys.
        result_rank = max(len(shape.dims) for shape in instruction.shapes)
        ranks = [len(shape.dims) for shape in _operand_shapes(instruction)]
        return _ALL_GRADIENTS if result_rank > max(ranks, default=0) else _KEY_GRADIENTS
    for name, products in _SPLASH.items():
        if name in instruction.op_name:
            return products
    return None


def _target(instruction: Instruction) -> str:
    if instruction.opcode != "custom-call":
        return ""
    return instruction.attribute("custom_call_target")


def _cudnn_visible_keys(instruction: Instruction, n_keys: int) -> float:
    """Keys of a query in computed tiles, averaged over queries."""
    config = instruction.backend_config.get("cudnn_fmha_backend_config", {})
    if "CAUSAL" not in config.get("mask_type", ""):
        return n_keys
    window = min(int(config.get("sliding_window_length", 0)), n_keys) or n_keys
    visible = window - (window - 1) * window / (2 * n_keys)
    edges = 1 if 2 * visible >= n_keys else 2
    return min(n_keys, float(tiled_keys(visible, edges, GPU_MASK_TILE)))


def _tensors(instruction: Instruction) -> list[Shape]:
    """Shapes of queries, keys, values, ..., without the integer tables."""
    operands = _operand_shapes(instruction)
    return [s for s in operands if len(s.dims) >= 3 and s.dtype in ("bf16", "f32", "f16")]


def _operand_shapes(instruction: Instruction) -> tuple[Shape, ...]:
    """Shapes of the operands, as the call states them."""
    attributes = instruction.attributes
    start = attributes.find("operand_layout_constraints={")
    if start < 0:
        return ()
    end = attributes.find("frontend_attributes=", start)
    return parse_shapes(attributes[start : end if end > 0 else None])


def _visible_share(
    operands: tuple[Shape, ...], queries: tuple[int, ...], keys: tuple[int, ...]
) -> float:
    """Share of the blocks of scores that are computed.

    For a chip with a part of the queries, the mean over all such chips: zigzag chunks give each
    chip that share.
    """
    tables = [s for s in operands if s.dtype in ("s8", "s16", "s32") and len(s.dims) == 3]
    if not tables:
        return 1.0
    n_rows, row_blocks = tables[0].dims[-2:]
    if n_rows == 0 or queries[-2] > keys[-2] or not _is_masked(operands, len(tables)):
        return 1.0
    n_blocks = n_rows * keys[-2] // queries[-2]  # rows of blocks of all queries
    computed = 0
    for row in range(n_blocks):
        computed += min(row + 1, row_blocks)
    return computed / n_blocks**2


def _is_masked(operands: tuple[Shape, ...], n_tables: int) -> bool:
    """Whether the kernel computes or reads a mask; a table may also mark all blocks as full.

    Positions of queries are one more integer array, segment ids two; a mask in memory has tables
    of its own.
    """
    positions = [s for s in operands if s.dtype == "s32" and len(s.dims) == 2]
    return n_tables > 2 or len(positions) % 2 == 1
