"""What users of the frameworks met: files that start, and files that say more than a layout."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput
from shardwise.frameworks import registry, replan
from shardwise.frameworks.config_files import beside
from shardwise.frameworks.exported import training_run
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch
from shardwise.models import presets
from shardwise.report.style import render
from shardwise.report.training import plan as training_report
from tests.golden.terminal import run
from tests.unit.frameworks import plans


def settings(framework: str, plan: sw.Plan) -> dict[str, Any]:
    return dict(registry.find(framework).write(training_run(plan)).settings)


def test_megatron_fsdp_has_its_checkpoint_format() -> None:
    assert settings("megatron", plans.training("hybrid"))["--ckpt-format"] == "fsdp_dtensor"
    assert "--ckpt-format" not in settings("megatron", plans.training("zero1"))


def test_megatron_is_told_the_layers_of_the_model() -> None:
    flags = settings("megatron", plans.training("zero1"))
    assert flags["--normalization"] == "RMSNorm"
    assert all(flags[name] for name in ("--swiglu", "--untie-embeddings-and-output-weights"))
    assert flags["--rotary-base"] == 500000
    assert "--kv-channels" not in flags  # 4096 / 32, which is Megatron's default
    qwen = sw.evaluate(
        sw.model("qwen3-30b-a3b"),
        sw.hardware("h100:8"),
        sw.Train(batch=64, seq=4096, remat="full"),
        sw.Mesh(expert=8),
    )
    assert settings("megatron", qwen)["--kv-channels"] == 128


def test_megatron_is_told_of_latents_and_experts() -> None:
    deepseek = sw.evaluate(
        sw.model("deepseek-v3"),
        sw.hardware("h100:1024"),
        sw.Train(batch=1024, seq=4096, remat="full"),
        sw.Mesh(expert=64, data=16),
    )
    flags = settings("megatron", deepseek)
    assert flags["--ffn-hidden-size"] == 18432  # of the three dense layers
    assert flags["--moe-ffn-hidden-size"] == flags["--moe-shared-expert-intermediate-size"] == 2048
    assert flags["--moe-layer-freq"] == f"[{','.join('000' + '1' * 58)}]"
    assert flags["--multi-latent-attention"]
    assert (flags["--q-lora-rank"], flags["--kv-lora-rank"]) == (1536, 512)
    dims = ("--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim")
    assert [flags[name] for name in dims] == [128, 64, 128]
    assert "--kv-channels" not in flags
    assert flags["--moe-router-score-function"] == "sigmoid"
    assert (flags["--moe-router-num-groups"], flags["--moe-router-group-topk"]) == (8, 4)


@pytest.mark.parametrize("output", ["32-256", "256"])
def test_engines_have_room_for_the_longest_request(output: str, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    lengths = ("--prompt", "128-1k", "--output", output)
    told = run("plan", "llama3-8b", "h100:1", "--serve", *lengths, "--rate", "1/s", "-o", path)
    assert told.code == 0, told.err
    for framework, name in (("vllm", "max-model-len"), ("sglang", "context-length")):
        text = run("export", path, "--to", framework).out
        (line,) = (line for line in text.splitlines() if name in line)
        assert "1280" in line


def test_nodes_of_gpus_are_slices_to_maxtext() -> None:
    keys = settings("maxtext", plans.training("fsdp-tensor"))
    over = [value for key, value in keys.items() if key.startswith("dcn_")]
    assert sorted(over) == [1] * (len(over) - 1) + [8]
    assert keys["base_config"] == "base.yml"


def test_a_ring_on_tpus_has_maxtexts_kernel() -> None:
    ring = sw.evaluate(
        sw.model("llama3-8b"),
        sw.hardware("v5e:4x4"),
        sw.Train(batch=16, seq=8192, remat="full"),
        sw.Mesh(fsdp=8, context=2),
        {"context_kind": "ring"},
    )
    keys = settings("maxtext", ring)
    assert (keys["attention"], keys["use_tokamax_splash"]) == ("flash", True)
    assert "use_tokamax_splash" not in settings("maxtext", plans.training("context"))


@pytest.mark.parametrize(("machine", "pods"), [("v5e:4x4", 4), ("v5e:2x4", 1), ("v6e:4x4", 4)])
def test_pods_of_gke_have_as_many_chips_as_its_machines(machine: str, pods: int) -> None:
    plan = sw.plan(sw.model("llama3.2-1b"), sw.hardware(machine), sw.Train(batch=64, seq=2048))
    job = settings("jobset", plan)["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] == pods
    assert pods * chips == plan.hardware.n_chips
    assert f"--processes {pods} " in container["args"][0]


def launch(text: str, file: str) -> Any:
    return registry.read(text, file).launch


TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
"""
MAXTEXT = "model_name: llama3-8b\nper_device_batch_size: 2\nmax_target_length: 4096\n"
MAXTEXT += "ici_fsdp_parallelism: -1\n"


@pytest.mark.parametrize(("text", "file", "batch"), [(TITAN, "a.toml", 4), (MAXTEXT, "a.yml", 16)])
def test_the_batch_of_a_rank_is_multiplied_by_the_machine(text: str, file: str, batch: int) -> None:
    found = launch(text, file)
    assert isinstance(found, TrainingLaunch)
    assert found.model == "llama3-8b"
    machine = sw.hardware("h100:8")
    assert replan.training_plan(found, sw.model("llama3-8b"), machine).job.batch == batch


def test_optimizer_state_in_host_memory_is_kept() -> None:
    text = """{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1,
      "gradient_accumulation_steps": 8, "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
      "zenflow": {"topk_ratio": 0.1}}}"""
    found = launch(text, "ds.json")
    assert found.offload == ("optimizer",)
    assert found.ignored == ("zero_optimization.offload_param", "zero_optimization.zenflow")
    plan = replan.training_plan(
        found, sw.model("llama3-8b"), sw.hardware("h100:8"), (found.batch, 4096)
    )
    assert plan.job.offload == ("optimizer",)
    screen = render(training_report.blocks(plan), io.StringIO())
    assert "optimizer in the host's memory" in " ".join(screen.split())
    exported = registry.export(plan, "deepspeed")
    assert json.loads(exported.text)["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert "offload" not in " ".join(exported.notes)  # it is in the file


def test_the_optimizer_of_megatron_may_be_in_host_memory() -> None:
    text = "--tensor-model-parallel-size 8 --micro-batch-size 1 --optimizer-cpu-offload --bf16"
    assert launch(text, "a.sh").offload == ("optimizer",)


def test_a_trainer_of_transformers_under_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(
        '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto", '
        '"gradient_accumulation_steps": "auto", "train_batch_size": "auto"}'
    )
    script = tmp_path / "train.sh"
    script.write_text(
        "deepspeed --num_gpus 8 --num_nodes 2 run_clm.py --model_name_or_path Qwen/Qwen2.5-32B "
        "--deepspeed zero3.json --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
        "--gradient_checkpointing True --block_size 4096\n"
    )
    content = registry.read(script.read_text(), str(script), None, beside(str(script)))
    read = content.launch
    assert isinstance(read, TrainingLaunch)
    assert (content.framework.name, read.model) == ("deepspeed", "Qwen/Qwen2.5-32B")
    assert (read.n_chips, read.zero, read.seq, read.remat) == (16, 3, 4096, "full")
    assert (read.micro_batch, read.n_microbatches, read.batch_per_chip) == (2, 4, 8)


def test_the_length_of_an_exported_plan_comes_back() -> None:
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:8"), sw.Train(batch=64, seq=8192))
    exported = registry.export(plan, "deepspeed")
    assert launch(exported.text, "a.json").seq == 8192


@pytest.mark.parametrize(
    ("name", "repository", "dtype"),
    [
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama3.1-70b", "int4"),
        ("nvidia/Llama-3.1-405B-Instruct-FP4", "llama3.1-405b", "fp4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "llama3.3-70b", "int8"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8"),
    ],
)
def test_quantized_checkpoints_of_others(name: str, repository: str, dtype: str) -> None:
    found = launch(f"vllm serve {name} -tp 8 --max-model-len 8192", "a.sh")
    assert isinstance(found, ServingLaunch)
    assert found.weights == dtype
    preset = presets.find(str(found.model))
    assert preset is not None
    assert preset.name == repository


def test_programs_in_python_are_refused() -> None:
    with pytest.raises(BadFile, match="is a program in Python"):
        launch("recipe.tensor_model_parallel_size = 8", "nemo.py")


def test_a_model_of_other_layers_is_refused() -> None:
    text = "--num-layers 80 --tensor-model-parallel-size 8 --micro-batch-size 1"
    text += " --global-batch-size 64 --seq-length 4096"
    with pytest.raises(BadInput, match="80 layers, llama3-8b has 32"):
        replan.training_plan(launch(text, "a.sh"), sw.model("llama3-8b"), sw.hardware("h100:8"))


def test_an_engine_takes_the_sequences_that_fit() -> None:
    text = "model: meta-llama/Meta-Llama-3-8B\nmax-model-len: 8192\nmax-num-seqs: 256\n"
    found = launch(text, "v.yaml")
    assert isinstance(found, ServingLaunch)
    plan = replan.serving_plan(found, sw.model("llama3-8b"), sw.hardware("h100:1"))
    assert 40 < plan.estimate.decode.batch < 64
    assert plan.memory.left >= 0


@pytest.mark.parametrize(
    ("text", "file", "option"),
    [
        ("model: a\ntensor-parallel-sise: 2\nmax-model-len: 8\n", "a.yaml", "tensor-parallel-sise"),
        (
            "--tensor-model-paralel-size 8 --seq-length 8 --micro-batch-size 1",
            "a.sh",
            "--tensor-model-paralel-size",
        ),
        ('{"zero_optimisation": {"stage": 3}, "train_batch_size": 8}', "a.json", "zero_opt"),
    ],
)
def test_a_misspelled_option_is_named(text: str, file: str, option: str) -> None:
    content = registry.read(text, file, {"a.yaml": "vllm", "a.sh": "megatron"}.get(file))
    assert len(content.misspelled) >= 1
    assert content.misspelled[0].startswith(option)


@pytest.mark.parametrize("framework", registry.names("train"))
def test_what_is_written_is_not_misspelled(framework: str) -> None:
    text = registry.export(plans.training("zero1"), framework).text
    content = registry.read(text, f"x{registry.find(framework).suffix}")
    assert content.misspelled == ()


def test_notes_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v.yaml").write_text(
        "model: meta-llama/Meta-Llama-3-8B\nmax-model-len: 8192\nmax-num-seqs: 256\n"
        "tensor-parallel-sise: 2\n"
    )
    said = run("import", "v.yaml", "llama3.1-8b", "h100:1")
    words = " ".join(said.err.split())
    assert said.code == 0
    assert "allows 256 sequences at a time; " in words
    assert "vLLM has no option tensor-parallel-sise; close: tensor-parallel-size." in words
    assert "llama3.1-8b is planned in its place" in words


def test_layers_that_stages_do_not_divide_are_said_or_refused() -> None:
    """DeepSeek-V3 has 61 layers, of which 58 have experts."""

    def plan(**fixed: Any) -> sw.Plan:
        mesh = sw.Mesh(fsdp=4, expert=8, pipe=8)
        job = sw.Train(batch=1024, seq=4096)
        return sw.evaluate(sw.model("deepseek-v3"), sw.hardware("h100:256"), job, mesh, fixed)

    flags = settings("megatron", plan(schedule="1f1b"))
    assert flags["--decoder-last-pipeline-num-layers"] == 61 - 7 * 8
    flags = settings("megatron", plan(schedule="interleaved", virtual=8))
    assert flags["--pipeline-model-parallel-layout"] == "Et|(t|)*60||L"
    with pytest.raises(BadInput, match="8 chunks of 61 layers"):
        registry.export(plan(schedule="interleaved", virtual=8), "torchtitan")
    with pytest.raises(BadInput, match="pipe 8 x 8 chunks for 58 layers"):
        registry.export(plan(schedule="interleaved", virtual=8), "maxtext")
