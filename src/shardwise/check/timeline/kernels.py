"""FLOPs of attention kernels, which are opaque calls in a compiled program.

Splash attention (JAX's Pallas kernel for TPUs) takes queries [.., N, T, H] and keys [.., K, S, H].
With a mask it also takes tables of blocks [.., block rows, blocks per row]: blocks outside the mask
are skipped, blocks on its edge are computed in full. If a table is as wide as the keys, the mask is
assumed to be causal; if it is narrower, a sliding window. For chunked attention, which computes
less, the latter is an upper bound.

cuDNN's flash attention for GPUs takes queries and keys with heads before or after tokens. The shape
of the scores [B, N, T, S] and the mask are in the configuration of the call. Tiles on the edge of
the mask count in full, as in plans.
"""

from __future__ import annotations

import math

from shardwise.arrays import ceil_div
from shardwise.check.hlo.costs import Cost
from shardwise.check.hlo.shape import HBM, Shape, parse_shapes
from shardwise.check.hlo.text import Instruction
from shardwise.estimate.kernels import GPU_MASK_TILE, tiled_keys
from shardwise.runtime.kernels.kernel_cost import of_name

# Matmuls per block of scores: (those over the head dim of queries, those over that of values).
# The forward pass computes s, and o. A backward kernel for all gradients computes s, dq, dk, and
# dp, dv. Split in two, one kernel computes s, dq, and dp; the other s, dk, and dp, dv.
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


def call_cost(instruction: Instruction) -> Cost | None:
    """FLOPs and bytes of a call of a kernel for GPUs that states them, or of attention.

    None for any other instruction.
    """
    stated = of_name(instruction.op_name) if instruction.opcode == "custom-call" else None
    if not stated:
        return attention_cost(instruction)
    return Cost(
        flops=stated.flops,
        elementwise=0,
        hbm_bytes=stated.hbm_bytes,
        dtype=instruction.shapes[0].dtype,
        products=() if is_attention(instruction) else ((instruction.op_name, stated.flops),),
    )


def is_attention(instruction: Instruction) -> bool:
    """Whether an instruction calls an attention kernel."""
    if instruction.opcode == "custom-call" and of_name(instruction.op_name):
        return "paged_attention" in instruction.op_name
    return attention_cost(instruction) is not None


def attention_cost(instruction: Instruction) -> Cost | None:
    """FLOPs and bytes of a call of an attention kernel, None for any other instruction.

    All operands count as read from HBM, since the call does not state their memory space.
    """
    matmul_counts = _matmul_counts(instruction)
    tensors = _float_operands(instruction)
    if matmul_counts is None or len(tensors) < 3:
        return None
    queries, keys, values = (shape.dims for shape in tensors[:3])
    operands = _operand_shapes(instruction)
    if _call_target(instruction) in _CUDNN:
        scores = _cudnn_scores(instruction)
    else:
        is_whole = matmul_counts == _ALL_GRADIENTS
        share = _visible_share(operands, queries, keys, is_whole=is_whole)
        scores = math.prod(queries[:-1]) * keys[-2] * share
    hbm_bytes = sum(shape.bytes for shape in operands)
    for shape in instruction.shapes:
        if shape.memory_space == HBM:
            hbm_bytes += shape.padded_bytes
    return Cost(
        flops=round(2 * scores * (matmul_counts[0] * queries[-1] + matmul_counts[1] * values[-1])),
        elementwise=round(scores),
        hbm_bytes=hbm_bytes,
        dtype=tensors[0].dtype,
    )


def head_dim(instruction: Instruction) -> int:
    """Head dim of an attention kernel, 0 for any other instruction."""
    if _matmul_counts(instruction) is None:
        return 0
    tensors = _float_operands(instruction)
    return tensors[0].dims[-1] if tensors else 0


def _matmul_counts(instruction: Instruction) -> tuple[int, int] | None:
    """Matmuls over the head dim of queries and of values; None if it is no attention kernel."""
    target = _call_target(instruction)
    if target != "tpu_custom_call":
        return _CUDNN.get(target)
    if any(name in instruction.op_name for name in _SPLASH_DKV):
        # A kernel for all gradients returns dq once per block of keys, hence with one more dim.
        result_rank = max(len(shape.dims) for shape in instruction.shapes)
        ranks = [len(shape.dims) for shape in _operand_shapes(instruction)]
        return _ALL_GRADIENTS if result_rank > max(ranks, default=0) else _KEY_GRADIENTS
    for name, counts in _SPLASH.items():
        if name in instruction.op_name:
            return counts
    return None


def _call_target(instruction: Instruction) -> str:
    if instruction.opcode != "custom-call":
        return ""
    return instruction.attribute("custom_call_target")


def _cudnn_scores(instruction: Instruction) -> float:
    """Scores in the tiles that the kernel computes."""
    config = instruction.backend_config["cudnn_fmha_backend_config"]
    *queries, n_keys = map(int, config["intermediate_tensor_shape"]["dimensions"])
    if "CAUSAL" not in config.get("mask_type", ""):
        return math.prod(queries) * n_keys
    window = min(int(config.get("sliding_window_length", 0)), n_keys) or n_keys
    visible = window - (window - 1) * window / (2 * n_keys)
    edges = 1 if 2 * visible >= n_keys else 2
    return math.prod(queries) * min(n_keys, float(tiled_keys(visible, edges, GPU_MASK_TILE)))


def _float_operands(instruction: Instruction) -> list[Shape]:
    """Shapes of queries, keys, values and other float operands, without the integer tables."""
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
    operands: tuple[Shape, ...],
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    *,
    is_whole: bool,
) -> float:
    """Fraction of the blocks of scores that the kernel computes.

    Blocks have as many keys as queries, except in a kernel for all gradients, whose tables list all
    blocks of keys (`is_whole`).

    If a chip has only part of the queries, this is the mean over chips; with zigzag chunks all of
    them have the same fraction.
    """
    tables = [s for s in operands if s.dtype in ("s8", "s16", "s32") and len(s.dims) == 3]
    if not tables:
        return 1.0
    n_local_rows, blocks_per_row = tables[0].dims[-2:]
    if n_local_rows == 0 or queries[-2] > keys[-2] or not _is_masked(operands, len(tables)):
        return 1.0
    n_rows = n_local_rows * keys[-2] // queries[-2]  # block rows of the queries of all chips
    n_columns = blocks_per_row if is_whole else n_rows
    computed_blocks = 0
    for row in range(n_rows):
        computed_blocks += min(ceil_div((row + 1) * n_columns, n_rows), blocks_per_row)
    return computed_blocks / (n_rows * n_columns)


def _is_masked(operands: tuple[Shape, ...], n_tables: int) -> bool:
    """Whether the kernel applies a mask; block tables alone may also list all blocks as full.

    A mask in memory has more than two tables. A mask that the kernel computes needs one 2-D integer
    array, the query positions; segment ids are two such arrays.
    """
    positions = [s for s in operands if s.dtype == "s32" and len(s.dims) == 2]
    return n_tables > 2 or len(positions) % 2 == 1
