"""MaxText's remat policies: which tensors are saved and where, and what plans have otherwise."""

from __future__ import annotations

from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadFile
from shardwise.frameworks import registry, replan

# A published recipe of long contexts, without its kernel options.
LONG = "python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama3.1-70b "
LONG += "per_device_batch_size=0.0625 max_target_length=131072 ici_fsdp_parallelism=-1 "
LONG += "ici_context_parallelism=8 remat_policy=custom decoder_layer_input=device context=device "
LONG += "query_proj=device key_proj=device value_proj=device mlpwo=device "
LONG += "num_vocab_tiling=4 "
SHORT = "per_device_batch_size=4 max_target_length=4096 ici_fsdp_parallelism=-1 remat_policy="
MLP = "gate,up"


def launch(text: str, model: str = "llama3.1-70b", machine: str = "v5p:4x4x4") -> Any:
    return registry.read(text, "a.sh").launch.on(sw.model(model), sw.hardware(machine).chip)


@pytest.mark.parametrize(
    ("policy", "model", "recomputed", "offload"),
    [
        ("full", "llama3.1-70b", "full", ()),
        ("custom", "llama3.1-70b", "full", ()),
        ("custom decoder_layer_input=offload", "llama3.1-70b", "full", ("activations",)),
        ("custom decoder_layer_input=offload", "deepseek-v3", "full", ("activations",)),
        ("custom decoder_layer_input=offload out_proj=offload", "llama3.1-70b",
         f"norms,mla_up,q,k,v,attention,{MLP},activation,down", ("activations",)),
        ("custom mlpwi_0=device", "llama3.1-70b",
         "norms,mla_up,q,k,v,attention,out,up,activation,down", ()),
        ("custom moe_mlpwi_0=device moe_mlpwi_1=device", "mixtral-8x7b",
         "norms,mla_up,q,k,v,attention,out,activation,down", ()),
        ("custom query_wa_proj=device kv_wa_proj=device", "deepseek-v3",
         f"norms,mla_up,attention,out,{MLP},activation,down", ()),
        ("custom query_proj=device key_proj=device value_proj=device", "deepseek-v3",
         f"norms,attention,out,{MLP},activation,down", ()),
        ("minimal_with_context", "llama3.1-70b", "dots", ()),
        ("minimal", "llama3.1-70b", "norms,mla_up,attention,activation", ()),
        ("save_dot_except_mlp", "llama3.1-70b",
         f"norms,mla_up,attention,{MLP},activation,down", ()),
        ("full optimizer_memory_host_offload=true", "llama3.1-70b", "full", ("optimizer",)),
    ],
)  # fmt: skip
def test_saved_tensors_are_not_recomputed(
    policy: str, model: str, recomputed: str, offload: tuple[str, ...]
) -> None:
    run = launch(SHORT + policy, model)
    assert (run.remat, run.offload, run.notes) == (recomputed, offload, ())


@pytest.mark.parametrize(
    ("policy", "model", "note"),
    [
        ("custom query_proj=device", "deepseek-v3", "saves query_proj; they are planned as rec"),
        ("custom attention_out=device", "llama3.1-70b", "saves attention_out"),
        ("custom moe_mlpwo=device", "llama3.1-70b", "saves moe_mlpwo"),
        ("custom decoder_layer_input=offload out_proj=device", "llama3.1-70b",
         "offloads decoder_layer_input to the host"),
        ("qkv_proj_offloaded", "llama3.1-70b", "offloads query_proj, key_proj, value_proj"),
        ("minimal_with_quantization", "llama3.1-70b", "is not read; the fastest policy"),
    ],
)  # fmt: skip
def test_tensors_that_plans_have_otherwise_are_named(policy: str, model: str, note: str) -> None:
    (text,) = launch(SHORT + policy, model).notes
    assert note in text


def test_saved_tensors_of_a_published_recipe_take_memory_and_less_time() -> None:
    work = (sw.model("llama3.1-70b"), sw.hardware("tpu7x:8x8x8"))
    saved = replan.training_plan(registry.read(LONG, "a.sh").launch, *work)
    full = LONG.replace("remat_policy=custom", "remat_policy=full")
    recomputed = replan.training_plan(registry.read(full, "a.sh").launch, *work)
    assert saved.strategy.remat == "norms,mla_up,out,gate,up,activation"
    assert saved.strategy.loss_chunks == 4
    assert saved.memory.activations > recomputed.memory.activations
    assert saved.estimate.step_s.expected < recomputed.estimate.step_s.expected


def test_adam_pax_is_planned_as_adamw() -> None:
    run = launch(f"{SHORT}full opt_type=adam_pax")
    assert run.optimizer == "adamw"
    (note,) = run.notes
    assert note.startswith("opt_type adam_pax is planned as adamw")


@pytest.mark.parametrize("batch", [0, -1, 0.0])
def test_batches_of_a_device_are_positive(batch: float) -> None:
    with pytest.raises(BadFile, match=r"per_device_batch_size .* must be positive"):
        launch(f"{SHORT}full".replace("size=4", f"size={batch}"))


def test_offload_needs_the_bandwidth_to_the_host() -> None:
    text = f"{SHORT}custom decoder_layer_input=offload"
    run = launch(text, machine="tpu7x:4x4x4")
    assert run.offload == ()
    (note,) = run.notes
    assert note.endswith("as ,pcie.bandwidth=32GB/s.")
    named = launch(text, machine="tpu7x:4x4x4,pcie.bandwidth=32GB/s")
    assert (named.offload, named.notes) == (("activations",), ())
