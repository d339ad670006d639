"""A plan that is exported and read back has the same mesh, and the words that the file says."""

from __future__ import annotations

import re

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.frameworks import registry, replan
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch
from tests.unit.frameworks import plans

TRAIN = registry.names("train")
SERVE = registry.names("serve")

# What a framework lacks, and refuses: all others of `plans` it runs.
REFUSED = {
    "maxtext": {"1f1b", "uneven", "empty-chunks", "ulysses", "whole-experts"},
    "torchtitan": {"empty-chunks", "sharded-experts", "slices"},
    "deepspeed": {
        "context",
        "interleaved",
        "uneven",
        "empty-chunks",
        "gpipe",
        "whole-experts",
        "sharded-experts",
        "slices",
    },
    "megatron": {"gpipe", "slices"},
    "megatron-bridge": {"gpipe", "slices"},
    "nemo": {"gpipe", "slices"},
    "vllm": {"context"},
    "tensorrt-llm": {"both", "context", "latent-context", "split-cache", "latent-cache"},
}


def body(text: str) -> str:
    """A file without the comment that names model and machine."""
    return re.sub(r"^.*shardwise: .*$", "", text, flags=re.M)


def file_name(framework: str) -> str:
    return f"launch{registry.find(framework).suffix}"


@pytest.mark.parametrize("name", plans.TRAINING)
@pytest.mark.parametrize("framework", TRAIN)
def test_a_training_plan_comes_back(framework: str, name: str) -> None:
    plan = plans.training(name)
    if name in REFUSED.get(framework, ()):
        with pytest.raises(BadInput, match="Nearest: plan again "):
            registry.export(plan, framework)
        return
    text = registry.export(plan, framework).text
    content = registry.read(body(text), file_name(framework))
    launch = content.launch
    assert content.framework.name == framework  # found by the options alone
    assert isinstance(launch, TrainingLaunch)
    assert launch.mesh(plan.hardware.n_chips) == plan.layout.mesh
    assert launch.n_chips in (None, plan.hardware.n_chips)
    assert launch.batch == plan.job.batch
    assert launch.seq in (None, plan.job.seq)
    if launch.micro_batch is not None:
        assert launch.micro_batch == plan.layout.micro_batch
    if launch.n_microbatches is not None:
        assert launch.n_microbatches == plan.layout.n_microbatches
    assert launch.expert_tensor in (None, plan.layout.expert_tensor)
    if plan.layout.is_pipelined:
        assert launch.schedule == plan.layout.schedule


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "nemo", "torchtitan"])
def test_overlapped_tensor_traffic_comes_back(framework: str) -> None:
    job = sw.Train(batch=64, seq=4096, overlap=("tp_comm",))
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:16"), job, {"tensor": 8, "pipe": 1})
    text = registry.export(plan, framework).text
    launch = registry.read(body(text), file_name(framework)).launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.overlap == ("tp_comm",)
    assert not any("not read" in note for note in launch.notes)
    again = replan.training_plan(launch, sw.model("llama3-8b"), sw.hardware("h100:16"), (64, 4096))
    assert "tp_comm" in again.layout.overlap


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "nemo", "deepspeed", "slurm"])
@pytest.mark.parametrize("name", ["fsdp-tensor", "zero1", "zero2", "hybrid"])
def test_the_zero_stage_comes_back(framework: str, name: str) -> None:
    plan = plans.training(name)
    launch = registry.read(registry.export(plan, framework).text, file_name(framework)).launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.zero == plan.layout.zero


@pytest.mark.parametrize("file", ["a.sh", "a.sbatch", "a.slurm", "launch"])
def test_a_batch_script_is_read_under_any_name(file: str) -> None:
    plan = plans.training("fsdp-tensor")
    content = registry.read(registry.export(plan, "slurm").text, file)
    assert content.framework.name == "slurm"
    assert content.launch.sizes == plan.layout.mesh.sizes


@pytest.mark.parametrize(("name", "virtual"), [("interleaved", 4), ("uneven", 8)])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "slurm", "jobset"])
def test_chunks_of_an_interleaved_schedule_come_back(
    framework: str, name: str, virtual: int
) -> None:
    plan = plans.training(name)
    launch = registry.read(registry.export(plan, framework).text, file_name(framework)).launch
    assert isinstance(launch, TrainingLaunch)
    mesh = launch.mesh(plan.hardware.n_chips)
    assert launch.choices(mesh, plan.model.n_layers)["virtual"] == virtual


@pytest.mark.parametrize("name", plans.SERVING)
@pytest.mark.parametrize("framework", SERVE)
def test_an_engine_comes_back(framework: str, name: str) -> None:
    plan = plans.serving(name)
    if name in REFUSED.get(framework, ()):
        with pytest.raises(BadInput, match="Nearest: plan again "):
            registry.export(plan, framework)
        return
    content = registry.read(body(registry.export(plan, framework).text), file_name(framework))
    launch = content.launch
    assert content.framework.name == framework
    assert isinstance(launch, ServingLaunch)
    assert launch.mesh(plan.hardware.n_chips).sizes == plan.strategy.servers.mesh
    assert launch.context == plan.workload.context
    ranks = plan.strategy.servers.mesh["expert"]
    assert launch.batch is not None
    assert 0 <= launch.batch - plan.estimate.decode.batch < ranks  # rounded up to all ranks
    shards = plan.strategy.servers.expert_tensor
    if plan.strategy.servers.mesh["tensor"] > 1:
        assert launch.expert_tensor == shards
    is_split = plan.strategy.servers.kv == "sequence"
    assert launch.kv_split == ("sequence" if is_split else "copied")


@pytest.mark.parametrize("framework", registry.names())
def test_every_framework_runs_five_plans(framework: str) -> None:
    names = plans.TRAINING if framework in TRAIN else plans.SERVING
    assert len(set(names) - REFUSED.get(framework, set())) >= 5


def test_the_comment_names_model_and_machine() -> None:
    plan = plans.training("experts")
    for framework in TRAIN:
        launch = registry.read(registry.export(plan, framework).text, file_name(framework)).launch
        assert (launch.model, launch.hardware) == ("mixtral-8x7b", "h100:64")


@pytest.mark.parametrize("part", ["prefill", "decode"])
def test_a_disaggregated_plan_has_a_file_for_each_part(part: str) -> None:
    plan = plans.serving("dense", disaggregate=True)
    assert plan.strategy.prefill
    with pytest.raises(BadInput, match="--part prefill or --part decode"):
        registry.export(plan, "vllm")
    for framework in ("vllm", "sglang"):
        launch = registry.read(registry.export(plan, framework, part).text, "f.yaml").launch
        assert isinstance(launch, ServingLaunch)
        assert launch.part == part


def test_a_latent_cache_is_split_over_all_tensor_ranks() -> None:
    """Its one latent is that of all heads, so that no rank has a head of its own."""
    ranks = {
        name: registry.export(plans.serving(name), "vllm").text.count("context-parallel-size: 4")
        for name in ("latent-cache", "split-cache")
    }
    assert ranks == {"latent-cache": 1, "split-cache": 0}  # 8 ranks have 4 heads: 2 each


def test_context_is_enabled_where_its_size_alone_shards_nothing() -> None:
    text = registry.export(plans.serving("context"), "sglang").text
    assert "attn-cp-size: 2\nenable-prefill-cp: true\ncp-strategy: zigzag\n" in text


def test_groups_of_attention_share_the_tokens_of_a_pass_in_sglang() -> None:
    """vLLM's limit is that of a rank; SGLang divides its own by the groups."""
    plan = plans.serving("experts")
    texts = {name: registry.export(plan, name).text for name in ("vllm", "sglang")}
    assert "max-num-batched-tokens: 8192\n" in texts["vllm"]
    assert "chunked-prefill-size: 65536\n" in texts["sglang"]
    for text in texts.values():
        launch = registry.read(text, "f.yaml").launch
        assert isinstance(launch, ServingLaunch)
        assert launch.chunk == 8192


def test_copies_of_experts_that_vllm_shards_are_said() -> None:
    text = registry.export(plans.serving("latent-context"), "vllm").text
    assert "not in this file: the copy of the experts in each of 2 ranks of context" in text


def test_context_beside_a_split_cache_is_refused() -> None:
    settings = {"tensor": 2, "context": 2, "kv": "sequence"}
    job = sw.Serve(context=4096, weights="bf16", kv="bf16", compute="bf16")
    plan = sw.plan(sw.model("deepseek-v2-lite"), sw.hardware("h100:4"), job, settings)
    with pytest.raises(BadInput, match=r"sglang does not run context 2 .* split over 2 ranks"):
        registry.export(plan, "sglang")
    assert "decode-context-parallel-size: 2" in registry.export(plan, "vllm").text  # of context


@pytest.mark.parametrize(
    ("model", "kind", "line"),
    [
        ("llama3-8b", "ulysses", "context_parallel_load_balance: false"),
        ("deepseek-v2-lite", "ring", "packing: false"),
    ],
)
def test_context_on_tpus_has_what_its_kernel_needs(model: str, kind: str, line: str) -> None:
    work = (sw.model(model), sw.hardware("v5p:4x4x4"), sw.Train(batch=64, seq=16384))
    plan = sw.evaluate(*work, sw.Mesh(fsdp=16, context=4), {"context_kind": kind})
    lines = registry.export(plan, "maxtext").text.splitlines()
    assert {"attention: flash", "use_tokamax_splash: true", line} <= set(lines)


@pytest.mark.parametrize(("name", "count"), [("hybrid", 1), ("zero1", 0)])
def test_megatron_fsdp_has_its_checkpoint_format(name: str, count: int) -> None:
    for framework in ("megatron", "megatron-bridge"):
        text = registry.export(plans.training(name), framework).text
        assert text.count("fsdp_dtensor") == count


def test_other_work_is_refused_with_the_names_that_do_it() -> None:
    with pytest.raises(BadInput, match=r"vLLM serves.* maxtext, torchtitan"):
        registry.export(plans.training("zero1"), "vllm")
    with pytest.raises(BadInput, match=r"MaxText trains.* vllm, sglang, tensorrt-llm"):
        registry.export(plans.serving("dense"), "maxtext")


def test_a_plan_for_tpus_is_refused_by_frameworks_for_gpus() -> None:
    with pytest.raises(
        BadInput, match=r"plan is for v5p:4x4x4\*2.*export to maxtext, jobset, slurm"
    ):
        registry.export(plans.training("slices"), "megatron")


@pytest.mark.parametrize("problem", ["kv", "weights"])
def test_an_engine_that_no_framework_has_is_refused(problem: str) -> None:
    value = {"kv": "batch", "weights": "2d"}[problem]
    settings = {"tensor": 16, "kv": "batch"} if problem == "kv" else {"tensor": 4, "fsdp": 4}
    plan = sw.plan(
        sw.model("llama3-70b"),
        sw.hardware("h100:16"),
        sw.Serve(context=4096, weights="fp8", kv="fp8", compute="fp8"),
        {**settings, problem: value},
        disaggregate=False,
    )
    for framework in SERVE:
        with pytest.raises(BadInput, match=f'"{value}"'):
            registry.export(plan, framework)


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        (framework, name)
        for framework in TRAIN
        for name in sorted(REFUSED.get(framework, set()) - {"slices"})
    ],
)
def test_the_nearest_plan_of_a_refusal_is_run(framework: str, name: str) -> None:
    plan = plans.training(name)
    with pytest.raises(BadInput) as refusal:
        registry.export(plan, framework)
    option = re.search(r"plan again with --framework ([\w-]+)\.$", str(refusal.value))
    assert option
    model, machine, batch, seq, _ = plans.TRAINING[name]
    job = sw.Train(batch=batch, seq=seq, framework=option[1])
    nearest = sw.plan(sw.model(model), sw.hardware(machine), job)
    assert registry.export(nearest, framework).text


def test_chunks_of_a_recipe_do_not_stay_beside_another_pipeline() -> None:
    """Recipes of Megatron Bridge have them for their own `pipe`."""
    text = registry.export(plans.training("1f1b"), "megatron-bridge").text
    for field in ("virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"):
        assert f"  {field}: null\n" in text


@pytest.mark.parametrize("remat", ["none", "norms", "full"])
def test_recomputation_of_a_recipe_does_not_stay_beside_another(remat: str) -> None:
    job = sw.Train(batch=64, seq=2048, framework="nemo")
    fixed = {"remat": remat, "tensor": 1, "pipe": 2}
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:8"), job, fixed)
    stated = {
        "none": {"granularity": None, "method": None, "num_layers": None, "modules": None},
        "norms": {"granularity": "selective", "method": None, "num_layers": None},
        "full": {"granularity": "full", "method": "uniform", "num_layers": 1, "modules": None},
    }[remat]
    bridge = registry.export(plan, "megatron-bridge").text
    nemo = registry.export(plan, "nemo").text
    for field, value in stated.items():
        assert f"  recompute_{field}: {'null' if value is None else value}\n" in bridge
        assert f"model.config.recompute_{field}={value}" in nemo
    for text, name in ((bridge, "a.yaml"), (nemo, "a.sh")):
        launch = registry.read(text, name).launch.on(sw.model("llama3-8b"), sw.chip("h100"))
        assert launch.remat == remat


def test_megatron_is_told_what_its_defaults_are_not() -> None:
    text = registry.export(plans.training("experts"), "megatron").text
    for flag in ("--attention-dropout 0.0", "--hidden-dropout 0.0", "--moe-grouped-gemm"):
        assert flag in text
    assert "--train-iters, --lr and its schedule" in text


def test_deepspeed_has_no_copies_of_experts_under_zero_3() -> None:
    settings = {"data": 2, "fsdp": 8, "expert": 4}
    job = sw.Train(batch=256, seq=4096)
    plan = sw.plan(sw.model("mixtral-8x7b"), sw.hardware("h100:64"), job, settings)
    with pytest.raises(
        BadInput, match=r"expert 4 with data 2 under ZeRO-3.*--framework deepspeed\."
    ):
        registry.export(plan, "deepspeed")


def test_what_does_not_fit_there_is_said() -> None:
    """torchtitan keeps fp32 weights, for which a full chip has no room."""
    plan = sw.plan(sw.model("llama3-70b"), sw.hardware("h100:64"), sw.Train(batch=64, seq=8192))
    problems = {
        name: replan.memory_problem(plan, registry.export(plan, name).text, name)
        for name in ("torchtitan", "megatron", "slurm")
    }
    assert problems["torchtitan"].startswith("does not fit: llama3-70b on h100:64 needs")
    assert (problems["megatron"], problems["slurm"]) == ("", "")
