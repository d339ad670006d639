"""What a file sets and the plan has otherwise is said, each in words of its own."""

from __future__ import annotations

import json

import pytest

import shardwise as sw
from shardwise.frameworks import registry
from shardwise.frameworks.launch import TrainingLaunch

MEGATRON = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1 \\
  --tensor-model-parallel-size 2 --sequence-parallel --global-batch-size 256 \\
  --seq-length 4096 --bf16 --overlap-grad-reduce """
STAGES = f"{MEGATRON} --pipeline-model-parallel-size 3"
MAXTEXT = "per_device_batch_size: 4\nici_fsdp_parallelism: -1\nremat_policy: full\n"
DEEPSPEED = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}


@pytest.mark.parametrize(
    ("text", "file", "note"),
    [
        (
            f"{MEGATRON} --rampup-batch-size 32 32 1953125", "a.sh",
            "--rampup-batch-size: steps grow to 256 sequences",
        ),
        (
            f"{STAGES} --decoder-first-pipeline-num-layers 5", "a.sh",
            "5 layers on the first stage and equal on the last: the plan has equal stages",
        ),
        (
            f"{STAGES} --decoder-last-pipeline-num-layers 5", "a.sh",
            "equal layers on the first stage and 5 on the last: the plan has equal stages",
        ),
        (
            json.dumps(
                DEEPSPEED
                | {"zero_optimization": {"stage": 2}}
                | {"activation_checkpointing": {"cpu_checkpointing": True}}
            ),
            "a.json",
            "cpu_checkpointing moves saved activations to host memory",
        ),
        (
            json.dumps(
                DEEPSPEED | {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}
            ),
            "a.json",
            "zero_hpz_partition_size: the run has a copy of the weights in each such group",
        ),
        (
            f"{MAXTEXT}shard_everything: true\nfavorite_color: red\n", "a.yml",
            "MaxText has no option shard_everything, favorite_color",
        ),
    ],
)  # fmt: skip
def test_a_note_says_it(text: str, file: str, note: str) -> None:
    assert any(note in text for text in registry.read(text, file).launch.notes)


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (MEGATRON, "a.sh"),
        (f"{STAGES} --decoder-last-pipeline-num-layers 10", "a.sh"),
        (MAXTEXT, "a.yml"),
    ],
)
def test_nothing_is_said_without_it(text: str, file: str) -> None:
    assert registry.read(text, file).launch.notes == ()


def test_options_of_maxtext_that_plans_have_no_word_for() -> None:
    launch = registry.read(f"{MAXTEXT}enable_lora: true\nmtp_num_layers: 0\n", "a.yml").launch
    assert launch.ignored == ("enable_lora",)


def test_variables_of_a_script_are_no_options_of_maxtext() -> None:
    text = """export XLA_FLAGS="--xla_x=1"
python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml run_name=a \\
  per_device_batch_size=4 ici_fsdp_parallelism=-1 OTHER=1"""
    assert registry.read(text, "a.sh").launch.notes == ()


@pytest.mark.parametrize(
    ("text", "file", "options"),
    [
        (
            f"{MEGATRON} --moe-expert-capacity-factor 2 --context-parallel-sise 1 --lr 1 "
            "--vocab-size 9 --ckpt-fully-parallel-save --log-memory-interval 3 --fp8-recipe mxfp8",
            "a.sh",
            "--moe-expert-capacity-factor, --fp8-recipe",
        ),
        ("vllm serve m --max-model-len 9 --foo-parallel-size 2 --port 8", "a.sh",
         "--foo-parallel-size"),
        ("vllm serve m --max-model-len 9 --max-num-seqs 4 --dtype bfloat16 -dp 2", "a.sh", ""),
        ("tensor_parallel_size: 2\nmax_batch_size: 8\nkv_cache_config:\n  host_cache_size: 9\n",
         "a.yaml", "kv_cache_config.host_cache_size"),
        ("model-path: m\ntp-size: 2\nhicache-size: 3\nenable-mixed-chunk: true\nlog-level: info\n",
         "a.yaml", "hicache-size, enable-mixed-chunk"),
        (json.dumps(DEEPSPEED | {"zero_optimization": {"stage": 2, "overlap_comm": True}}),
         "a.json", ""),
        (
            json.dumps(DEEPSPEED | {"zero_optimization": {"stage": 2, "mics_shard_size": 8}}),
            "a.json",
            "zero_optimization.mics_shard_size",
        ),
        (f"{MAXTEXT}megablox: true\nsa_block_q: 512\nuse_chunked_prefill: true\n", "a.yml",
         "use_chunked_prefill"),
        ("nemo llm pretrain trainer.devices=8 trainer.num_nodes=1 "
         "trainer.strategy.pipeline_dtype=torch.float32", "a.sh",
         "trainer.strategy.pipeline_dtype"),
        ("model:\n  tensor_model_parallel_size: 2\n  cpu_offloading_num_layers: 3\n", "a.yaml",
         "model.cpu_offloading_num_layers"),
        ("[training]\nlocal_batch_size = 1\nseq_len = 8\n[parallelism]\n"
         "enable_async_tensor_parallel = true\npipeline_parallel_layers_per_stage = 2\n", "a.toml",
         "parallelism.enable_async_tensor_parallel"),
    ],
)  # fmt: skip
def test_options_of_layout_memory_or_speed_that_are_not_read_are_named(
    text: str, file: str, options: str
) -> None:
    begin = "not read, though layout, memory or speed may depend on it: "
    notes = [note for note in registry.read(text, file).launch.notes if note.startswith(begin)]
    assert notes == ([f"{begin}{options}."] if options else [])


def test_activations_of_attention_are_recomputed_by_megatrons_older_flag() -> None:
    launch = registry.read(f"{MEGATRON} --recompute-activations", "a.sh").launch
    granular = registry.read(f"{MEGATRON} --recompute-granularity selective", "a.sh").launch
    assert isinstance(launch, TrainingLaunch)
    assert isinstance(granular, TrainingLaunch)
    model, chip = sw.model("llama3-8b"), sw.hardware("h100:8").chip
    assert launch.on(model, chip) == granular.on(model, chip)


def test_files_that_are_not_beside_a_script_are_named() -> None:
    script = "source env.sh\nsource ~/.bashrc\n. venv/bin/activate\npython pretrain_gpt.py --bf16"
    notes = registry.read(script, "x.sh", "megatron").launch.notes
    text = "env.sh: sourced, but not beside the script; what it sets is not known."
    assert [note for note in notes if "sourced" in note] == [text]
    beside = registry.read(
        script, "x.sh", "megatron", lambda name: "" if name == "env.sh" else None
    )
    assert not [note for note in beside.launch.notes if "sourced" in note]


def test_nested_context_parallelism_is_a_ring() -> None:
    flags = "--bf16 --context-parallel-size 8 --cp-comm-type"
    for kind, n_notes in (("a2a+p2p", 1), ("p2p", 0)):
        launch = registry.read(f"python pretrain_gpt.py {flags} {kind}", "x.sh").launch
        assert isinstance(launch, TrainingLaunch)
        assert launch.context_kind == "ring"
        assert sum("planned as ring attention" in note for note in launch.notes) == n_notes


def test_dualpipe_v_is_zero_bubble_v() -> None:
    flags = (
        "--parallelism.pipeline_parallel_degree 4 "
        "--parallelism.pipeline_parallel_schedule DualPipeV --training.local_batch_size 8"
    )
    launch = registry.read(f"torchrun -m torchtitan.train {flags}", "x.sh").launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.schedule == "zb-v"
    assert "schedule DualPipeV: planned as ZBVZeroBubble, without its overlap." in launch.notes


def test_copies_of_weights_are_shared_over_sequences_too() -> None:
    """ZeRO++ counts ranks of a node, among which are those of sequence parallelism."""
    job = sw.Train(batch=64, seq=4096)
    words = {"context_kind": "ulysses", "remat": "full"}
    mesh = sw.Mesh(data=2, fsdp=4, context=2)
    plan = sw.evaluate(sw.model("llama3-8b"), sw.hardware("h100:16"), job, mesh, words)
    text = registry.export(plan, "deepspeed").text
    assert json.loads(text)["zero_optimization"]["zero_hpz_partition_size"] == 8
    launch = registry.read(text, "x.json").launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.mesh(16) == mesh


@pytest.mark.parametrize(("dtype", "n_notes"), [("fp8", 1), ("mxfp4", 0)])
def test_a_checkpoint_of_another_dtype_is_named(dtype: str, n_notes: int) -> None:
    job = sw.Serve(context=4096, weights=dtype, kv="bf16", compute="bf16")
    plan = sw.plan(sw.model("gpt-oss-120b"), sw.hardware("h100:8"), job, disaggregate=False)
    notes = registry.export(plan, "vllm").notes
    assert sum("is in mxfp4, and the plan in fp8" in note for note in notes) == n_notes


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ("--num-layers 80 --pipeline-model-parallel-size 3", "80 layers do not divide over 3"),
        (
            "--num-layers 61 --pipeline-model-parallel-size 16 "
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            "61 layers and 2 for embedding or loss do not divide over 16",
        ),
        ("--num-layers 62 --pipeline-model-parallel-size 4 "
         "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", ""),
        ("--num-layers 80 --pipeline-model-parallel-size 4", ""),
    ],
)  # fmt: skip
def test_stages_that_megatron_refuses(flags: str, note: str) -> None:
    notes = registry.read(f"python pretrain_gpt.py --bf16 {flags}", "a.sh", "megatron").launch.notes
    found = [text for text in notes if "Megatron does not start so" in text]
    assert len(found) == bool(note)
    assert note in "".join(found)


@pytest.mark.parametrize(
    ("flags", "waits_for"),
    [
        ("", "--overlap-grad-reduce the"),
        ("--use-distributed-optimizer", "--overlap-grad-reduce and --overlap-param-gather the"),
        ("--use-distributed-optimizer --overlap-grad-reduce", "--overlap-param-gather the"),
        ("--tensor-model-parallel-size 8 --sequence-parallel", ""),  # no data parallelism
    ],
)
def test_traffic_that_megatron_waits_for(flags: str, waits_for: str) -> None:
    script = f"torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 {flags}"
    notes = [
        text for text in registry.read(script, "a.sh", "megatron").launch.notes if "waits" in text
    ]
    assert len(notes) == bool(waits_for)
    assert waits_for in "".join(notes)


@pytest.mark.parametrize(
    ("flags", "n_notes"),
    [("--use_peft --lora_r 16 --load_in_4bit", 1), ("--use_lora True", 1), ("--bf16 True", 0)],
)
def test_adapters_are_not_planned(flags: str, n_notes: int) -> None:
    script = f"torchrun train.py --deepspeed ds.json --per_device_train_batch_size 1 {flags}"
    notes = registry.read(script, "a.sh").launch.notes
    assert sum("adapters are not planned" in note for note in notes) == n_notes


@pytest.mark.parametrize(
    ("option", "remat", "n_notes"), [("op", "dots", 0), ("1", "full", 0), ("2", "none", 1)]
)
def test_torchtitan_recomputes_every_nth_layer(option: str, remat: str, n_notes: int) -> None:
    text = (
        "[training]\nlocal_batch_size = 1\n[parallelism]\ndata_parallel_shard_degree = 8\n"
        f'[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "{option}"\n'
    )
    launch = registry.read(text, "a.toml").launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.remat == remat
    assert sum("selective_ac_option" in note for note in launch.notes) == n_notes


@pytest.mark.parametrize(
    ("flags", "remat"),
    [
        ("--activations-checkpoint-method uniform", "full"),
        ("--tensor-model-parallel-size 2 --sequence-parallel", "norms"),
        ("--tensor-model-parallel-size 2", "none"),
        ("--sequence-parallel", "none"),
    ],
)
def test_what_megatron_recomputes_without_its_newer_flags(flags: str, remat: str) -> None:
    """Sequences that are sharded over `tensor` are gathered again in the backward pass."""
    launch = registry.read(f"python pretrain_gpt.py --bf16 {flags}", "a.sh", "megatron").launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.remat == remat


def test_sequences_of_maxtext_are_sharded_over_tensor() -> None:
    text = f"{MAXTEXT}ici_tensor_parallelism: 2\nici_tensor_sequence_parallelism: 4\n"
    launch = registry.read(text, "a.yml").launch
    assert launch.sizes["tensor"] == 8
    assert launch.ignored == ()


@pytest.mark.parametrize(("tensor", "n_notes"), [(4, 1), (1, 0)])
def test_tensor_parallelism_of_deepspeed_has_all_tokens(tensor: int, n_notes: int) -> None:
    settings = {**DEEPSPEED, "tensor_parallel": {"autotp_size": tensor}}
    notes = registry.read(json.dumps(settings), "a.json").launch.notes
    assert sum("without sequence parallelism" in note for note in notes) == n_notes
