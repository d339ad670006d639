"""The operation of the model and the category, from what the compiler says of an operation."""

from __future__ import annotations

import pytest

from shardwise.check.hlo.scopes import model_operation
from shardwise.profile.categories import category
from shardwise.profile.programs import ProgramOperation


@pytest.mark.parametrize(
    ("op_name", "operation"),
    [
        ("jit(run)/jvp(mlp.up)/dot_general", ("mlp.up", "forward")),
        ("jit(run)/transpose(jvp(attn.q))/dot_general", ("attn.q", "backward")),
        ("jit(run)/optimizer/mul", ("optimizer", "update")),
        ("jit(f)/transpose(jvp(Net))/while/body/layer/mlp/dot", ("Net/layer/mlp", "backward")),
        ("jit(f)/jit(silu)/logistic", ("", "forward")),
        ("", ("", "forward")),
    ],
)  # fmt: skip
def test_model_operation(op_name: str, operation: tuple[str, str]) -> None:
    assert model_operation(op_name) == operation


def compiled(opcode: str, *inner: str, target: str = "", op_name: str = "") -> ProgramOperation:
    opcodes = frozenset({opcode, *inner})
    return ProgramOperation(opcode=opcode, opcodes=opcodes, target=target, op_name=op_name)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (compiled("fusion", "dot", "add"), "matmul"),
        (compiled("fusion", "dot", op_name="jit(f)/attn.core/dot_general"), "attention"),
        (compiled("fusion", "parameter", "transpose"), "copy"),
        (compiled("fusion", "exponential", "reduce"), "elementwise"),
        (compiled("all-reduce-done"), "communication"),
        (compiled("async-start", "reduce-scatter"), "communication"),
        (compiled("while"), "loop"),
        (compiled("custom-call", target="__cublas$gemm"), "matmul"),
        (compiled("custom-call", target="flash_attention_fwd"), "attention"),
    ],
)
def test_category(operation: ProgramOperation, expected: str) -> None:
    assert category("x.1", operation) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("all-gather-start.3", "communication"),
        ("nvjet_gemm_128x256", "matmul"),
        ("dot.7", "matmul"),
        ("MemcpyD2D", "copy"),
        ("while.12", "loop"),
        ("input_reduce_fusion_2", "elementwise"),
    ],
)
def test_category_by_name_alone(name: str, expected: str) -> None:
    assert category(name, None) == expected
