"""Scripts of a shell as people write them: variables with defaults, quoted commands, arrays."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.errors import BadFile
from shardwise.frameworks import registry, shell_script
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch
from shardwise.frameworks.shell.run import run

SCRIPT = """\
#!/bin/bash
TP=${TP:-4}
: "${PP:=2}"
FOLDER="a b"
N=${1:-"8"}
SEQ=4096
MORE="--seq-length $SEQ \\
  --global-batch-size 128"
TYPES=(
  "--fp8-format hybrid"
  --micro-batch-size ${MICRO}
)
TYPES+=(--sequence-parallel)
torchrun --nproc_per_node $N pretrain_gpt.py --tensor-model-parallel-size $TP \\
  --pipeline-model-parallel-size ${PP} $MORE ${TYPES[@]} ${EXTRA_ARGS} "$@"
"""
TITAN = """\
CONFIG=${CONFIG:-"llama3_8b"}
torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config ${CONFIG} "$@"
"""


def test_variables_have_the_values_that_the_script_gives_them() -> None:
    flags = shell_script.settings(run(SCRIPT, "train.sh"))
    assert flags["--tensor-model-parallel-size"] == 4
    assert flags["--pipeline-model-parallel-size"] == 2
    assert flags["--nproc_per_node"] == 8
    assert (flags["--seq-length"], flags["--global-batch-size"]) == (4096, 128)
    assert flags["--fp8-format"] == "hybrid"
    assert flags["--sequence-parallel"] is True
    assert flags["--micro-batch-size"] == "${MICRO}"  # set elsewhere


def test_arithmetic_of_whole_numbers_is_worked_out() -> None:
    text = """NODES=4
    WORLD_SIZE=$(( $NODES * 8 ))
    BATCH=$(( (WORLD_SIZE / ${TP:-8}) * 3 ))  # sequences
    torchrun train.py --global-batch-size $BATCH --nnodes $((NODES % 3)) \\
      --rank $((SLURM_NODEID + 1)) --left $((1 / 0)) --shift $((1 ^ 9))
    """
    values = shell_script.settings(run(text, "a.sh"))
    assert (values["--global-batch-size"], values["--nnodes"]) == (12, 1)
    unknown = [str(values[flag]) for flag in ("--rank", "--left", "--shift")]
    assert all(value.startswith("$((") for value in unknown), unknown


def test_variables_that_the_script_does_not_set_are_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "TP=${TP:-4}\nvllm serve m --tensor-parallel-size $TP --max-num-seqs ${SEQS:-8}"
    for name, value in {"TP": "2", "SEQS": "16"}.items():
        monkeypatch.setenv(name, value)
    flags = shell_script.settings(run(text, "a.sh"))
    assert (flags["--tensor-parallel-size"], flags["--max-num-seqs"]) == (2, 16)


def test_a_variable_without_a_value_is_named() -> None:
    with pytest.raises(
        BadFile, match=r"size is \$TP_OF_ALL, and .* Set it: TP_OF_ALL=NUMBER shardwise import"
    ):
        registry.read("vllm serve m --tensor-parallel-size $TP_OF_ALL", "a.sh")


COUNTED = """N={value}
vllm serve m --tensor-parallel-size {size}"""


@pytest.mark.parametrize(
    ("value", "size", "message"),
    [
        (
            "$(nvidia-smi --query-gpu=name --format=csv | wc -l)",
            "$N",
            r"size is \${N}, and neither",
        ),
        ("`wc -l < hostfile`", "$N", r"what N is. Set it: N=NUMBER shardwise import"),
        ('"${N:-$(nvidia-smi -L | wc -l)}"', "$((N / 2))", r"size is \$\(\(N/2\)\), and neither"),
        ("0; while read line; do N=$((N+1)); done < hosts", '"$N"', r"what N is"),
        ("0; while read k v; do N=$v; done <<EOF\na 8\nEOF", "$N", r"what N is"),
        ("4; M=$(nvidia-smi -L)", "$((N * M))", r"size is \$\(\(4\*M\)\), .* what M is"),
        ("1", "$(nvidia-smi -L | wc -l)", r"wc -l\), which only a shell knows. Write a number"),
    ],
)
def test_a_number_that_only_a_shell_knows_is_given_by_its_variable(
    value: str, size: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = COUNTED.format(value=value, size=size)
    with pytest.raises(BadFile, match=message):
        registry.read(script, "a.sh")
    monkeypatch.setenv("N", "8")
    if "4; M" not in value and "$(nv" not in size:
        expected = 4 if "/ 2" in size else 8
        assert registry.read(script, "a.sh").launch.sizes["tensor"] == expected


def test_options_whose_names_only_a_shell_knows_are_told() -> None:
    script = """args=(--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2)
while read -r k v; do
  args+=("--$k" "$v")
done <<EOT
num-layers 32
EOT
python pretrain_gpt.py ${args[@]} --micro-batch-size 1 --global-batch-size 256 --bf16
"""
    launch = registry.read(script, "a.sh").launch
    assert (launch.sizes["tensor"], launch.sizes["pipe"]) == (4, 2)
    assert any("only a shell knows which options --${k} are" in note for note in launch.notes)


@pytest.mark.parametrize("value", ["$BATCH", "$((NODES*8))", "[1,2]", "x"])
@pytest.mark.parametrize("flag", ["--global-batch-size", "--micro-batch-size", "--seq-length"])
def test_a_batch_of_megatron_is_a_number(flag: str, value: str) -> None:
    with pytest.raises(BadFile, match=f"{flag[2:].replace('-', '_')} is "):
        registry.read(
            f"python pretrain_gpt.py --tensor-model-parallel-size 4 {flag} {value}",
            "a.sh",
            "megatron",
        )


@pytest.mark.parametrize(
    "end", ["> log.txt 2>&1 &", "2>&1 | tee log.txt", ">log.txt", "&> log.txt", "&& echo 3"]
)
def test_where_output_goes_is_no_value(end: str) -> None:
    flags = shell_script.settings(
        run(f"vllm serve m --tp 8 --kv-cache-dtype fp8 --pp 2 {end}", "a.sh")
    )
    assert (flags["--kv-cache-dtype"], flags["--pp"]) == ("fp8", 2)
    assert "log.txt" not in flags["$"] or "tee" in flags["$"]


def test_the_stage_of_megatron_deepspeed_is_read() -> None:
    text = "deepspeed pretrain_gpt.py --micro-batch-size 1 --global-batch-size 64 --seq-length 2048"
    launch = registry.read(f"{text} --bf16 --zero-stage=3 --deepspeed", "a.sh").launch
    assert isinstance(launch, TrainingLaunch)
    assert (launch.zero, launch.fill) == (3, "fsdp")
    assert any("deepspeed_config" in note for note in launch.notes)
    with pytest.raises(BadFile, match="--zero-stage is 4"):
        registry.read(f"{text} --zero-stage=4 --deepspeed", "a.sh")


def test_a_variable_may_be_put_into_its_own_next_value() -> None:
    text = """
ARGS="--bf16"
ARGS="--deepspeed ${ARGS}"
ARGS="--zero-stage=3 $ARGS"
deepspeed pretrain_gpt.py --micro-batch-size 1 --seq-length 2048 $ARGS
"""
    flags = shell_script.settings(run(text, "a.sh"))
    assert (flags["--zero-stage"], flags["--deepspeed"], flags["--bf16"]) == (3, True, True)
    doubled = 'A="xy"\n' + 'A="$A$A"\n' * 60 + "train.py $A"
    assert len(shell_script.settings(run(doubled, "a.sh"))["$"][-1]) < 20_000


def test_a_command_of_tensorrt_llm_is_its_own() -> None:
    text = "trtllm-serve serve a/model --tp_size 8 --ep_size 8 --max_seq_len 2000 --config c.yaml"
    content = registry.read(text, "a.sh")
    assert content.framework.name == "tensorrt-llm"
    assert isinstance(content.launch, ServingLaunch)
    assert (content.launch.model, content.launch.context) == ("a/model", 2000)
    assert content.elsewhere == ("c.yaml",)


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize("order", ["> {0} << {1}", "<<{1} > {0}"])
def test_a_file_that_a_script_writes_is_read(quote: str, order: str) -> None:
    start = order.format("./engine.yml", f"{quote}EOF{quote}")
    text = f"""
TP=8
cat {start}
enable_attention_dp: true
kv_cache_config:
  dtype: fp8
EOF
trtllm-serve a/model --tp_size $TP --max_seq_len 2000 --extra_llm_api_options engine.yml
"""
    launch = registry.read(text, "a.sh").launch
    assert isinstance(launch, ServingLaunch)
    assert (launch.sizes["tensor"], launch.sizes["expert"], launch.kv) == (1, 8, "fp8")
    assert launch.ignored == ()


def test_variables_in_a_file_that_a_script_writes() -> None:
    text = "TP=4\ncat > a.yaml <<EOF\ntensor_parallel_size: $TP\nEOF\nvllm serve m --config a.yaml"
    launch = registry.read(text, "a.sh").launch
    assert launch.sizes["tensor"] == 4


def test_an_engine_that_is_built() -> None:
    text = """
python convert_checkpoint.py --model_dir ./m --output_dir ./c --tp_size 4 --pp_size 2 --use_fp8
trtllm-build --checkpoint_dir ./c --max_batch_size 64 --max_seq_len 8192 --max_num_tokens 4096
"""
    content = registry.read(text, "a.sh")
    assert content.framework.name == "tensorrt-llm"
    launch = content.launch
    assert isinstance(launch, ServingLaunch)
    assert (launch.sizes["tensor"], launch.sizes["pipe"]) == (4, 2)
    assert (launch.weights, launch.batch, launch.context) == ("fp8", 64, 8192)


@pytest.mark.parametrize("flag", ["--model", "-m"])
def test_an_engine_of_a_benchmark(flag: str) -> None:
    text = (
        f"trtllm-bench {flag} meta-llama/Llama-3.1-70B throughput --tp 4 --pp 2 --ep 2 "
        "--backend pytorch --max_num_tokens 8192"
    )
    content = registry.read(text, "a.sh")
    launch = content.launch
    assert content.framework.name == "tensorrt-llm"
    assert isinstance(launch, ServingLaunch)
    assert (launch.sizes["tensor"], launch.sizes["pipe"], launch.expert_tensor) == (4, 2, 2)
    assert (launch.model, launch.chunk) == ("meta-llama/Llama-3.1-70B", 8192)


@pytest.mark.parametrize("file", ["a", "a.sh", "a.yaml", "a.json", "a.toml"])
@pytest.mark.parametrize("text", ["", "\n", "# a comment\n"])
def test_an_empty_file_is_told_as_such(file: str, text: str) -> None:
    with pytest.raises(BadFile, match=f"^{file} is empty"):
        registry.read(text, file)


def test_rounded_numbers_are_those_of_vllm() -> None:
    text = "vllm serve m --tensor-parallel-size 2 --max-model-len {}"
    for word, tokens in {"32k": 32_000, "32K": 32_768, "1.5k": 1500}.items():
        launch = registry.read(text.format(word), "a.sh").launch
        assert isinstance(launch, ServingLaunch)
        assert launch.context == tokens


def test_a_quoted_command_is_read() -> None:
    for words in ("bash -c 'train.py --lr 2'", "xpk run --command 'train.py --lr 2'"):
        assert shell_script.settings(run(words, "a.sh"))["--lr"] == 2
    assert shell_script.settings(run('xpk run --command="train.py --lr 2"', "a.sh"))["--lr"] == 2
    several = shell_script.settings(run("run -c 'a.py --lr 2' -c 'b.py --tp 4'", "a.sh"))
    assert (several["--lr"], several["--tp"]) == (2, 4)


def test_options_that_are_kept_elsewhere_are_named() -> None:
    content = registry.read(SCRIPT.replace("${MICRO}", "1"), "train.sh")
    assert content.elsewhere == ("${EXTRA_ARGS}",)
    file = "python3 -m maxtext.train configs/llama2_7b.yml ici_fsdp_parallelism=8"
    assert registry.read(file, "a.sh", "maxtext").elsewhere == ("configs/llama2_7b.yml",)


def test_the_rest_of_a_command_line_is_no_value() -> None:
    launch = registry.read(TITAN, "run.sh").launch
    assert (launch.model, launch.n_chips) == ("llama3-8b", 8)


def test_negated_flags_and_variables_are_not_misspelled() -> None:
    text = f"SHARDING_STRATEGIES=1\n{SCRIPT.replace('${MICRO}', '1')} --no-rope-fusion"
    assert registry.read(text, "train.sh").misspelled == ()


@pytest.mark.parametrize(
    ("text", "file", "message"),
    [
        ("per_device_batch_size: .nan\nici_fsdp_parallelism: -1\n", "a.yml", "must be a number"),
        ("per_device_batch_size: 1e400\nici_fsdp_parallelism: -1\n", "a.yml", "must be a number"),
        (
            '[training]\nlocal_batch_size = "two"\n[parallelism]\ntensor_parallel_degree = 2\n',
            "a.toml",
            "local_batch_size is .two.; it must be a number",
        ),
    ],
)
def test_numbers_that_are_none_are_refused(text: str, file: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        registry.read(text, file)


@pytest.mark.parametrize(
    ("text", "framework", "sizes"),
    [
        ("tp-size: '8'\nmodel-path: x\ncontext-length: '8192'\n", "sglang", {"tensor": 8}),
        (
            "tp_size: 8\nep_size: 8\npp_size: 1\nbackend: pytorch\n"
            "llm_api_args:\n  enable_attention_dp: true\n  max_batch_size: 32\n",
            "tensorrt-llm",
            {"expert": 8},
        ),
    ],
)
def test_files_of_launchers(text: str, framework: str, sizes: dict[str, int]) -> None:
    content = registry.read(text, "serve.yaml")
    assert content.framework.name == framework
    launch: Any = content.launch
    assert {role: size for role, size in launch.sizes.items() if size > 1} == sizes


def test_a_server_of_sglang_is_recognized_by_its_module() -> None:
    command = "python -m sglang.launch_server --model Qwen/Qwen3-32B --tp 8"
    content = registry.read(command, "serve.sh")
    assert content.framework.name == "sglang"
    assert content.launch.model == "Qwen/Qwen3-32B"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tensor_model_parallel_size=2 trainer.devices=8 trainer.num_nodes=1", "nemo"),
        ("model:\n  tensor_model_parallel_size: 2\ntrain:\n  micro_batch_size: 1\n", None),
    ],
)
def test_recipes_shard_the_optimizer_unless_they_are_overridden(
    text: str, name: str | None
) -> None:
    launch: Any = registry.read(text, "a.sh" if name else "a.yaml", name).launch
    assert launch.zero == 1


def test_flags_of_the_compiler_are_no_options_elsewhere() -> None:
    text = f"{SCRIPT.replace('${MICRO}', '1')} ${{XLA_FLAGS}} ${{LIBTPU_INIT_ARGS}}"
    assert registry.read(text, "train.sh").elsewhere == ("${EXTRA_ARGS}",)
