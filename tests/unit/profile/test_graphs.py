"""Kernels of CUDA graphs, whose events all carry the name of the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from jax.profiler import ProfileData

from shardwise.profile.account import profile_devices, read_devices
from shardwise.profile.devices import executions_of
from shardwise.profile.programs import Program, ProgramOperation, Programs

KERNELS = [
    ("memcpy128", 0, 5),  # before the first rare operation, as in the other steps
    ("memcpy128", 0, 0),
    ("gemm_fusion_dot_3", 5, 60),
    ("nvjet_sm90_tst_128x160_64x5_2x1_v_bz_NNT", 65, 20),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 85, 10),
    *[(f"loop_add_fusion_{i}", 95, 0) for i in range(20)],
]
STEP_US, STEPS = 100, 4


def trace(path: Path) -> Path:
    """A stream of some steps, each one CUDA graph."""
    names = sorted({name for name, _, _ in KERNELS})
    text = ['planes { name: "/device:GPU:0" lines { id: 1 name: "Stream #14(Compute)"']
    for step in range(STEPS):
        for name, start, duration in KERNELS:
            offset = (step * STEP_US + start) * 10**6
            text.append(
                f"events {{ metadata_id: {names.index(name) + 1} offset_ps: {offset} "
                f"duration_ps: {duration * 10**6} "
                'stats { metadata_id: 1 str_value: "jit_step" } '
                'stats { metadata_id: 2 str_value: "command_buffer_7" } }'
            )
    text.append("}")
    for number, name in enumerate(names, 1):
        text.append(f'event_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }}')
    for number, name in enumerate(("hlo_module", "hlo_op"), 1):
        text.append(f'stat_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }}')
    path.write_bytes(ProfileData.text_proto_to_serialized_xspace("\n".join([*text, "}"])))
    return path


def test_the_steps_of_graphs_and_their_categories(tmp_path: Path) -> None:
    file = str(trace(tmp_path / "gpu.xplane.pb"))
    profile = profile_devices(file, read_devices(file))
    assert (profile.steps, profile.step_s) == (STEPS - 1, pytest.approx(1e-6 * STEP_US))
    seconds = {part.category: part.seconds for part in profile.categories if part.seconds}
    assert seconds == pytest.approx(
        {"matmul": 80e-6, "attention": 10e-6, "copy": 5e-6, "gap": 5e-6}
    )
    assert "command_buffer" not in " ".join(part.name for part in profile.operations)


def test_a_kernel_is_called_after_an_operation() -> None:
    dot = ProgramOperation(
        opcode="fusion",
        opcodes=frozenset({"fusion", "dot"}),
        target="",
        op_name="jit(step)/jvp(mlp.up)/dot_general",
    )
    compiled = Programs({"jit_step": [Program(operations={"gemm-fusion.dot.3": dot}, content=b"")]})
    name = compiled.of_kernel("jit_step", "gemm_fusion_dot_3")
    assert name == "gemm-fusion.dot.3"
    found = compiled.find("jit_step", name)
    assert found is not None
    assert found.operation == ("mlp.up", "forward")
    assert compiled.of_kernel("jit_step", "nvjet_sm90") == "nvjet_sm90"


def test_only_whole_executions_count_but_for_an_only_one(tmp_path: Path) -> None:
    (device,) = read_devices(str(trace(tmp_path / "gpu.xplane.pb")))
    assert len(executions_of([e for e in device.events if e.start_ns >= 70e3])) == STEPS - 1
    (only,) = executions_of([event for event in device.events if event.start_ns < 100e3])
    assert (only.start_ns, only.end_ns) == (0, 95e3)
