"""What files recompute: of which layers, and what of it plans have otherwise."""

from __future__ import annotations

from typing import Any

import pytest

import shardwise as sw
from shardwise.frameworks import registry, replan
from shardwise.vocabulary import PARTS

QWEN = "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py --num-layers 48 --num-experts 128 "
QWEN += "--tensor-model-parallel-size 1 --expert-model-parallel-size 8 --use-distributed-optimizer "
QWEN += "--overlap-grad-reduce --overlap-param-gather "
QWEN += "--micro-batch-size 1 --global-batch-size 512 --seq-length 4096 --bf16 "
SELECTIVE = "--recompute-granularity selective --recompute-modules "
FFN = "gate,up,activation"


def launch(text: str, model: str) -> Any:
    return registry.read(text, "a.sh").launch.on(sw.model(model), sw.hardware("h100:8").chip)


@pytest.mark.parametrize(
    ("model", "modules", "remat", "note"),
    [
        ("deepseek-v3", "mlp moe mla_up_proj layernorm", "mlp", ""),
        ("deepseek-v3", "mlp layernorm", "norms", "the 3 dense layers of deepseek-v3 recompute"),
        ("deepseek-v3", "moe", FFN, "the 3 dense layers of deepseek-v3 recompute nothing"),
        ("deepseek-v3", "layernorm mla_up_proj moe_act", "dots", "3 dense layers"),
        ("qwen3-30b-a3b", "mlp", "none", "nothing of the 48 layers with experts"),
        ("qwen3-30b-a3b", "moe layernorm", "mlp", ""),
        ("qwen3-30b-a3b", "moe shared_experts", FFN, ""),
        ("qwen3-30b-a3b", "shared_experts", "none", "shared_experts is not planned"),
        ("llama3-8b", "mlp layernorm", "mlp", ""),
        ("llama3-8b", "moe", "none", "which llama3-8b lacks"),
        ("llama3-8b", "mla_up_proj", "none", "which llama3-8b lacks"),
        ("llama3-8b", "core_attn", "none", "core_attn is not planned"),
    ],
)
def test_megatrons_modules_recompute_the_layers_that_have_them(
    model: str, modules: str, remat: str, note: str
) -> None:
    run = launch(QWEN + SELECTIVE + modules, model)
    assert run.remat == remat
    assert [note in text for text in run.notes] == [True] * bool(note)


def test_modules_of_experts_take_less_memory_than_those_of_dense_layers() -> None:
    work = (sw.model("qwen3-30b-a3b"), sw.hardware("h100:64"))
    plan = replan.training_plan(registry.read(f"{QWEN}{SELECTIVE}moe", "a.sh").launch, *work)
    assert plan.strategy.recomputed == ("gate", "up", "activation")
    dense = replan.training_plan(registry.read(f"{QWEN}{SELECTIVE}mlp", "a.sh").launch, *work)
    assert dense.strategy.recomputed == ()
    assert plan.memory.activations < dense.memory.activations / 2


@pytest.mark.parametrize(
    ("model", "modules"),
    [("qwen3-30b-a3b", "layernorm moe"), ("llama3-8b", "layernorm mlp"),
     ("deepseek-v2-lite", "layernorm mla_up_proj mlp moe")],
)  # fmt: skip
def test_remat_of_the_ffn_is_exported_as_the_modules_of_its_layers(
    model: str, modules: str
) -> None:
    job = sw.Train(batch=64, seq=2048, remat="mlp")
    plan = sw.plan(sw.model(model), sw.hardware("h100:64"), job, {"pipe": 1}, any_layout=True)
    text = sw.export(plan, "megatron").text
    assert f"--recompute-modules {modules} \\" in text
    run = registry.read(text, "a.sh").launch.on(sw.model(model), sw.hardware("h100:8").chip)
    assert (run.remat, run.notes) == ("mlp", ())


def test_parts_that_no_policy_has_can_be_fixed() -> None:
    work = (sw.model("llama3-8b"), sw.hardware("h100:64"), sw.Train(batch=64, seq=2048))
    plan = sw.plan(*work, {"remat": "out,norms,gate", "tensor": 1})
    assert plan.strategy.recomputed == tuple(p for p in PARTS if p in ("norms", "out", "gate"))
    with pytest.raises(sw.ShardwiseError, match="outt"):
        sw.plan(*work, {"remat": "outt,norms"})


def test_dtypes_and_dispatcher_of_megatron_are_planned_or_named() -> None:
    fsdp = f"{QWEN} --use-megatron-fsdp --megatron-fsdp-main-grads-dtype bf16"
    assert launch(fsdp, "qwen3-30b-a3b").dtypes == {"gradients": "bf16"}
    wide = fsdp.replace("main-grads-dtype bf16", "main-grads-dtype auto")
    run = launch(f"{wide} --megatron-fsdp-grad-comm-dtype bf16", "qwen3-30b-a3b")
    assert run.dtypes == {"reduce": "bf16"}
    assert run.notes == ()
    (note,) = launch(f"{QWEN} --moe-token-dispatcher-type flex", "qwen3-30b-a3b").notes
    assert note.startswith("token dispatcher flex: ")
    assert "export writes alltoall" in note
