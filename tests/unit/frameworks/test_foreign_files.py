"""Files as users of the frameworks write them, not by export."""

from __future__ import annotations

from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput, BadShape, UnknownName
from shardwise.frameworks import registry, replan
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch

MEGATRON = """\
#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=4
export TP=4
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}   # in the node
    --pipeline-model-parallel-size 2
    --sequence-parallel
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --seq-length 4096
    --use-distributed-optimizer
    --recompute-granularity full
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${MODEL_PARALLEL_ARGS[@]} ${TRAINING_ARGS[@]}
"""
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
context_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
"""
MAXTEXT = """\
base_config: base.yml
model_name: llama3.1-70b
per_device_batch_size: 0.5
max_target_length: 8192
ici_fsdp_parallelism: 16
ici_tensor_parallelism: 8
dcn_data_parallelism: 2
remat_policy: full
"""
DEEPSPEED = """\
{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
 "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 3},
 "fp16": {"enabled": "auto"}}
"""
# ZeRO++: a copy of the weights in each group of 8.
ZERO_PLUS_PLUS = """\
{"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
 "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}
"""
VLLM = "VLLM_USE_V1=1 vllm serve Qwen/Qwen3-30B-A3B -tp 2 -dp 4 --enable-expert-parallel \\\n"
VLLM += "  --max-model-len 32768 --max-num-seqs 64 --kv-cache-dtype fp8\n"
SGLANG = (
    "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 \\\n"
)
SGLANG += "  --enable-dp-attention --dp 8 --trust-remote-code\n"
TENSORRT = """\
tensor_parallel_size: 8
moe_expert_parallel_size: 8
enable_attention_dp: true
max_batch_size: 32
kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.8}
cuda_graph_config:
  batch_sizes: [1, 2, 4]
"""


@pytest.mark.parametrize(
    ("text", "file", "framework", "n_chips", "sizes"),
    [
        (MEGATRON, "train.sh", "megatron", 32, {"tensor": 4, "pipe": 2, "data": 4}),
        (TORCHTITAN, "train.toml", "torchtitan", 64, {"tensor": 4, "context": 2, "fsdp": 8}),
        (MAXTEXT, "run.yml", "maxtext", 256, {"fsdp": 16, "tensor": 8, "data": 2}),
        (DEEPSPEED, "ds.json", "deepspeed", 16, {"fsdp": 16}),
        (
            ZERO_PLUS_PLUS.replace("BATCH", "256"), "ds.json", "deepspeed", 32,
            {"fsdp": 8, "data": 4},
        ),
        (
            ZERO_PLUS_PLUS.replace("BATCH", '"auto"'), "ds.json", "deepspeed", 64,
            {"fsdp": 8, "data": 8},
        ),
        (VLLM, "serve.sh", "vllm", 8, {"tensor": 2, "expert": 4}),
        (SGLANG, "serve.sh", "sglang", 16, {"tensor": 2, "expert": 8}),
        (TENSORRT, "extra.yaml", "tensorrt-llm", 8, {"expert": 8}),
        (TENSORRT, "-", "tensorrt-llm", 8, {"expert": 8}),
        (MEGATRON, "-", "megatron", 32, {"tensor": 4, "pipe": 2, "data": 4}),
        (DEEPSPEED, "-", "deepspeed", 8, {"fsdp": 8}),
    ],
)  # fmt: skip
def test_the_layout_is_read(
    text: str, file: str, framework: str, n_chips: int, sizes: dict[str, int]
) -> None:
    content = registry.read(text, file)
    assert content.framework.name == framework
    mesh = content.launch.mesh(n_chips).sizes
    assert {role: n for role, n in mesh.items() if n > 1} == sizes


def launch(text: str, file: str) -> Any:
    return registry.read(text, file).launch


def test_batch_words_and_names_are_read() -> None:
    megatron = launch(MEGATRON, "train.sh")
    assert isinstance(megatron, TrainingLaunch)
    assert (megatron.batch, megatron.micro_batch, megatron.seq) == (128, 1, 4096)
    assert (megatron.zero, megatron.remat, megatron.n_chips) == (1, "full", 32)
    maxtext = launch(MAXTEXT, "run.yml")
    assert (maxtext.batch, maxtext.seq, maxtext.model) == (128, 8192, "llama3.1-70b")
    vllm = launch(VLLM, "serve.sh")
    assert isinstance(vllm, ServingLaunch)
    assert (vllm.model, vllm.batch, vllm.context) == ("Qwen/Qwen3-30B-A3B", 256, 32768)
    assert (vllm.kv, vllm.kv_split, vllm.expert_tensor) == ("fp8", "copied", 1)
    titan = launch(TORCHTITAN, "train.toml")
    assert (titan.zero, titan.remat, titan.micro_batch) == (3, "dots", 2)
    assert launch(DEEPSPEED, "ds.json").batch is None


@pytest.mark.parametrize(
    ("text", "file", "message"),
    [
        ("", "a.yaml", "a.yaml is empty"),
        ("- 1\n- 2\n", "a.yaml", "no mapping"),
        ("<!doctype html>\n<p>--tp 8</p>", "a.html", "a.html is HTML or XML"),
        ("a: &x 1\n", "a.yaml", 'line 1, "a: &x 1", begins with "&"'),
        ("a: 1\na: 2\n", "a.yaml", 'line 2, "a: 2", gives the key "a" again'),
        ("a: [1, 2\n", "a.yaml", "brackets that do not match"),
        ("a: 1\n   b: 2\n", "a.yaml", "line 2"),
        ("{", "a.json", "a.json is no JSON"),
        ("[x", "a.toml", "a.toml is no TOML"),
        ("a 'b\n", "a.sh", "a.sh is no script of a shell: No closing quotation"),
        ('{"schema": "shardwise.plan/2"}', "p.json", "shardwise export p.json --to NAME"),
        ("size: 3\n", "a.yaml", "options of no framework that is read .its first: size"),
        (
            "ici_fsdp_parallelism: 0\nici_data_parallelism: 2\n",
            "a.yml",
            "ici_fsdp_parallelism is 0",
        ),
        ("ici_fsdp_parallelism: -1\nici_data_parallelism: -1\n", "a.yml", "are both -1"),
        ("tp-size: 8\nattn-dp-size: 3\nep-size: 2\n", "a.yaml", "tp-size 8 is no multiple"),
        (
            "tp-size: 8\nattn-cp-size: 2\nep-size: 2\n",
            "a.yaml",
            "without enable-prefill-cp has 2 co",
        ),
        (
            '{"pipe-parallel-size": 4, "model-parallel-size": 2, "train_batch_size": 8}',
            "a.json",
            r"GPT-NeoX, which is not read.* --fix pipe=4,tensor=2",
        ),
        (ZERO_PLUS_PLUS.replace("BATCH", "96"), "a.json", "8 does not divide the 12 ranks"),
        (
            ZERO_PLUS_PLUS.replace(": 8}", ': "auto"}').replace("BATCH", "8"),
            "a.json",
            "zero_hpz_partition_size is 'auto'",
        ),
        ("tensor-parallel-size: 8\n", "a.yaml", "may be of vllm"),
        ("tensor-parallel-size: two\nmax-model-len: 9\n", "a.yaml", "it must be a number"),
        (
            "--tensor-model-parallel-size 8 --expert-model-parallel-size 12 "
            "--expert-tensor-parallel-size 1",
            "a.sh",
            "does not hold whole tensor groups of 8",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused(text: str, file: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        registry.read(text, file)


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(UnknownName, match="megatron"):
        registry.read(MEGATRON, "train.sh", "megatron-lm")


def test_a_machine_of_another_size_is_refused() -> None:
    with pytest.raises(BadShape, match=r"fsdp 16 x tensor 8 = 256 chips, the machine has 128"):
        launch(MAXTEXT, "run.yml").mesh(128)
    with pytest.raises(BadShape, match="tensor 4 x pipe 2 = 8 chips do not divide the 12"):
        launch(MEGATRON, "train.sh").mesh(12)


@pytest.mark.parametrize("method", ["fp8", "awq"])
@pytest.mark.parametrize("cache", ["", " --kv-cache-dtype auto"])
def test_a_cache_of_no_named_dtype_is_not_quantized_with_the_weights(
    method: str, cache: str
) -> None:
    """`auto` is the dtype of activations in vLLM and SGLang."""
    for command in (
        "vllm serve meta-llama/Llama-3.1-8B -tp",
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp",
    ):
        engine = launch(f"{command} 2 --quantization {method}{cache}", "serve.sh")
        assert engine.kv == "bf16"
        assert engine.weights in ("fp8", "int4")


def test_what_an_engine_is_told_beyond_a_plan_is_named() -> None:
    engine = launch(
        "vllm serve Qwen/Qwen3-8B -tp 2 --gpu-memory-utilization 0.5 --enforce-eager "
        "--kv-cache-dtype fp4 --max-model-len 4096",
        "serve.sh",
    )
    assert engine.ignored == ("gpu_memory_utilization", "enforce_eager", "kv_cache_dtype fp4")
    megatron = launch(MEGATRON.replace("--seq-length", "--optimizer sgd --seq-length"), "train.sh")
    assert megatron.ignored == ("--optimizer",)


def test_layers_that_maxtext_is_told_are_held_against_the_model() -> None:
    run = launch(f"{MAXTEXT}base_num_decoder_layers: 5\n", "run.yml")
    with pytest.raises(BadInput, match="for a model of 5 layers, llama3-8b has 32"):
        replan.training_plan(run, sw.model("llama3-8b"), sw.hardware("v5p:4x4x4"))


def test_a_file_of_a_named_framework_may_leave_the_layout_to_it() -> None:
    launch = registry.read("base_config: base.yml\nsteps: 10\n", "sft.yml", "maxtext").launch
    assert launch.mesh(8).sizes == sw.Mesh(fsdp=8).sizes


def test_a_cache_is_split_over_ranks_that_share_a_head() -> None:
    model = sw.model("llama3-70b")  # with 8 KV heads
    for tensor, ranks, message in ((4, 2, "those are 1 .* Write 1."), (16, 8, "Write 2, or 1 for")):
        command = f"vllm serve x -tp {tensor} -dcp {ranks} --max-model-len 4096 --max-num-seqs 8"
        with pytest.raises(BadInput, match=message):
            replan.serving_plan(launch(command, "a.sh"), model, sw.hardware(f"h100:{tensor}"))
    engine = launch("vllm serve x -tp 16 -dcp 2 --max-model-len 4096 --max-num-seqs 8", "a.sh")
    plan = replan.serving_plan(engine, model, sw.hardware("h100:16"))
    assert plan.strategy.servers.kv == "sequence"


@pytest.mark.parametrize(
    ("sizes", "names", "planned"),
    [
        ("32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32", (), None),
        (
            "32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
            "--group-query-attention --num-query-groups 8",
            ("llama3-8b", "llama3.1-8b", "mistral-7b", "mistral-7b-v0.3"),
            None,
        ),
        (
            "32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
            "--group-query-attention --num-query-groups 8 --vocab-size 128256",
            ("llama3-8b", "llama3.1-8b"),
            "llama3-8b",
        ),
        ("96 --hidden-size 12288 --num-attention-heads 96", ("gpt3-175b",), "gpt3-175b"),
        (
            "32 --hidden-size 4096 --num-attention-heads 32 --swiglu --vocab-size 32000",
            (),
            None,
        ),
        (
            "48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 "
            "--num-query-groups 4 --num-experts 128 --moe-ffn-hidden-size 768",
            ("qwen3-30b-a3b",),
            "qwen3-30b-a3b",
        ),
    ],
)
def test_models_with_the_sizes_of_a_script_are_named(
    sizes: str, names: tuple[str, ...], planned: str | None
) -> None:
    run = launch(f"{MEGATRON} --num-layers {sizes}", "train.sh")
    assert (run.presets, run.sized_like) == (names, planned)
