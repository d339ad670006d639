"""Settings of kernels: what a plan takes them to, and the files that say them."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.errors import BadInput, UnknownName
from shardwise.frameworks import megatron_graphs, registry, replan
from shardwise.vocabulary import KERNELS, NO_KERNELS

MODEL = "qwen3-30b-a3b"
LAYOUT = {"expert": 8, "micro_batch": 8, "zero": 1, "remat": "none"}


def plan(*kernels: str, hardware: str = "gb300:8") -> sw.Plan:
    job = sw.Train(batch=512, seq=4096, compute="fp8", framework="nemo", kernels=kernels)
    return sw.plan(sw.model(MODEL), sw.hardware(hardware), job, LAYOUT)


def test_each_setting_makes_a_step_faster() -> None:
    words = (NO_KERNELS, *KERNELS)
    steps = {(word,): plan(word).step.expected for word in words}
    plain = steps.pop((NO_KERNELS,))
    assert all(plain > seconds for seconds in steps.values())
    assert steps["attn_graphs",] > steps["cuda_graphs",]
    both = plan("attn_graphs", "mlp_graphs").step.expected
    assert both == pytest.approx(steps["cuda_graphs",])


def test_unknown_words_and_chips_without_such_kernels_are_refused() -> None:
    with pytest.raises(UnknownName, match="setting of kernels"):
        sw.Train(batch=1, seq=1, kernels=("graphs",))
    job = sw.Train(batch=512, seq=4096, kernels=("cuda_graphs",))
    with pytest.raises(BadInput, match="settings of kernels on GPUs, not v5p"):
        sw.plan(sw.model(MODEL), sw.hardware("v5p:2x2x2"), job)


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("kernels", [("cuda_graphs", "fp8_attention"), ("attn_graphs",), ()])
def test_settings_come_back_from_a_file(framework: str, kernels: tuple[str, ...]) -> None:
    written = registry.export(plan(*(kernels or (NO_KERNELS,))), framework)
    name = "a.sh" if framework == "megatron" else "a.yaml"
    launch = registry.read(written.text, name, framework).launch
    again = replan.training_plan(launch, sw.model(MODEL), sw.hardware("gb300:8"))
    assert again.job.kernels == kernels


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cuda_graph_impl": "none", "cuda_graph_scope": ["attn"]}, ()),
        ({"cuda_graph_impl": "full_iteration"}, ("cuda_graphs",)),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": "full"}, ("cuda_graphs",)),
        ({"enable_cuda_graph": True}, ("cuda_graphs",)),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "attn moe_router"},
            ("attn_graphs",),
        ),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": ["moe_router"]}, ()),
    ],
)
def test_modules_of_graphs(values: dict[str, object], words: tuple[str, ...]) -> None:
    assert megatron_graphs.read(values) == words


def test_nemo_overlaps_tensor_parallel_transfers_by_default() -> None:
    job = sw.Train(batch=64, seq=8192, framework="nemo")
    overlapped = sw.plan(sw.model("llama3-70b"), sw.hardware("h100:64"), job, {"tensor": 8})
    assert "tp_comm" in overlapped.strategy.overlap
    assert overlapped.job.overlap == ("tp_comm",)
