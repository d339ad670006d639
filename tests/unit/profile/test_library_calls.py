"""Kernels of libraries on GPUs, matched with the calls of a program by their order."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.profile.devices import Execution, with_calls
from shardwise.profile.library_calls import calls_of, matched
from shardwise.profile.messages import message_types
from shardwise.profile.programs import Program, ProgramOperation, Programs
from tests.unit.profile.events import MODULE, event

PRODUCT, TRITON = "__cublas$lt$matmul", "__gpu$xla.gpu.triton"
FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
CALLS = (
    ("custom-call.1", PRODUCT),
    ("attention.1", FORWARD),
    ("custom-call.2", PRODUCT),
    ("experts.1", TRITON),
    ("attention.2", BACKWARD),
)
KERNELS = (
    "nvjet_sm90_tst_128x160",
    "cudnn_generated_sdpa_sm90_flash_fprop_wgmma",
    "cutlass_80_tensorop_gemm",
    "Memset 0",
    "grouped_matmul_4flops_8bytes__1",
    "cudnn::fusion::compute_dot_do_o",
    "cudnn_generated_sdpa_sm90_flash_bprop_wgmma",
)
OF_CALLS = {
    0: "custom-call.1",
    1: "attention.1",
    2: "custom-call.2",
    4: "experts.1",
    6: "attention.2",
}


def test_each_kernel_belongs_to_the_call_of_its_place() -> None:
    assert matched(KERNELS, CALLS) == OF_CALLS


def test_a_library_with_another_number_of_kernels_has_none() -> None:
    found = matched([*KERNELS, "nvjet_sm90_tst_64x64"], CALLS)
    assert found == {i: name for i, name in OF_CALLS.items() if i not in (0, 2)}


def module(backend_config: bytes) -> Any:
    """A call, a loop over two calls, and a call, listed in another order than they run."""

    def custom_call(number: int) -> dict[str, Any]:
        name = f"custom-call.{number}"
        return {
            "id": number,
            "name": name,
            "opcode": "custom-call",
            "custom_call_target": PRODUCT,
        }

    loop = {
        "id": 9,
        "name": "while.9",
        "opcode": "while",
        "called": [2, 3],
        "backend_config": backend_config,
    }
    return message_types()["HloModule"](
        computations=[
            {"id": 3, "instructions": [{"id": 31, "name": "compare.31", "opcode": "compare"}]},
            {"id": 2, "instructions": [custom_call(21), custom_call(22)]},
            {"id": 1, "instructions": [custom_call(8), loop, custom_call(7)]},
        ],
        entry_computation_id=1,
        schedule={
            "sequences": [
                {"key": 1, "value": {"instruction_ids": [7, 9, 8]}},
                {"key": 2, "value": {"instruction_ids": [22, 21]}},
                {"key": 3, "value": {"instruction_ids": [31]}},
            ]
        },
    )


def test_calls_of_a_loop_are_made_in_each_of_its_turns() -> None:
    calls = calls_of(module(b'{"known_trip_count": {"n": "2"}}'))
    assert [name.removeprefix("custom-call.") for name, _ in calls] == [
        "7", "22", "21", "22", "21", "8",
    ]  # fmt: skip


@pytest.mark.parametrize("config", [b"", b"{}", b'{"known_trip_count": {}}'])
def test_calls_are_unknown_where_turns_are(config: bytes) -> None:
    assert calls_of(module(config)) == ()


def test_the_model_names_what_a_library_computes_in_every_execution() -> None:
    def operation(target: str, scope: str) -> ProgramOperation:
        return ProgramOperation(
            opcode="custom-call",
            opcodes=frozenset({"custom-call"}),
            target=target,
            op_name=f"jit(step)/jvp({scope})/call",
        )

    program = Program(
        operations={
            "custom-call.1": operation(PRODUCT, "mlp.up"),
            "experts.1": operation(TRITON, "moe.up"),
        },
        content=b"",
        calls=(("custom-call.1", PRODUCT), ("experts.1", TRITON)),
    )
    compiled = Programs({MODULE: [program]})
    kernels = ("nvjet_sm90", "grouped_matmul_1flops")
    executions = [Execution(module=MODULE, start_ns=at, end_ns=at + 9) for at in (0, 10)]
    events = [
        event(name, run.start_ns + i, run.start_ns + i + 1)
        for run in executions
        for i, name in enumerate(kernels)
    ]
    named = with_calls(events, executions, compiled)
    assert [one.operation for one in named] == 2 * [("mlp.up", "forward"), ("moe.up", "forward")]
    assert {one.category for one in named} == {"matmul"}
    assert all(one.is_named for one in named)
