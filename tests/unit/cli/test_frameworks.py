"""`export` and `import` on the command line: files, notes on stderr, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwise as sw
from tests.golden.terminal import run
from tests.unit.frameworks import plans


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    plans.training("fsdp-tensor").save(path)
    return str(path)


@pytest.fixture
def engine(tmp_path: Path) -> str:
    path = tmp_path / "engine.json"
    plans.serving("dense").save(path)
    return str(path)


def test_a_plan_is_printed_and_its_notes_are_on_stderr(plan: str) -> None:
    done = run(*["export", plan, "--to", "maxtext"])
    assert done.code == 0
    assert "dcn_fsdp_parallelism: 8\nici_fsdp_parallelism: 2\n" in done.out
    assert done.err.startswith("note: not in the file: training state fp32-master")


def test_json_has_the_text_and_the_notes(plan: str) -> None:
    done = run(*["export", plan, "--to", "deepspeed", "--json"])
    document = json.loads(done.out)
    assert json.loads(document["text"])["zero_optimization"]["stage"] == 3
    assert len(document["notes"]) >= 2


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "jobset", "slurm"])
def test_an_exported_file_is_a_plan_again(plan: str, tmp_path: Path, framework: str) -> None:
    file, back = str(tmp_path / "launch"), tmp_path / "back.json"
    assert run(*["export", plan, "--to", framework, "-o", file]).code == 0
    done = run(*["import", file, "-o", str(back)])
    assert (done.code, done.err) == (0, "")
    imported, exported = sw.load(back), plans.training("fsdp-tensor")
    assert isinstance(imported, sw.Plan)
    assert imported.layout.mesh == exported.layout.mesh
    assert imported.job.batch == exported.job.batch
    assert imported.strategy.fixed["tensor"] == 4
    assert run(*["explain", str(back)]).code == 0


def test_an_engine_is_a_plan_again(engine: str, tmp_path: Path) -> None:
    file, back = str(tmp_path / "vllm.yaml"), tmp_path / "back.json"
    assert run(*["export", engine, "--to", "vllm", "-o", file]).code == 0
    assert run(*["import", file, "-o", str(back)]).code == 0
    imported, exported = sw.load(back), plans.serving("dense")
    assert isinstance(imported, sw.ServingPlan)
    assert imported.strategy.servers.mesh == exported.strategy.servers.mesh
    assert imported.strategy.precision == exported.strategy.precision
    assert imported.workload.engine == "vllm"  # whose overhead is added
    assert imported.estimate.tpot_s > exported.estimate.tpot_s


TRAINER = """torchrun --nnodes 4 --nproc-per-node 8 train.py --deepspeed ds.json --bf16 True
 --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size {batch} --max_seq_length 16384
 --gradient_checkpointing True
"""


@pytest.mark.parametrize(("batch", "n_notes"), [(4, 1), (1, 0)])
def test_chunks_of_the_loss_that_a_file_does_not_name(
    tmp_path: Path, batch: int, n_notes: int
) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, '
        '"train_micro_batch_size_per_gpu": "auto"}'
    )
    script = tmp_path / "a.sh"
    script.write_text(TRAINER.format(batch=batch).replace("\n", " "))
    done = run(*["import", str(script), "qwen2.5-7b", "h100"])  # as many as the script starts
    assert done.code == 0
    assert "on 32 chips" in done.out
    assert " ".join(done.err.split()).count("does not say that the loss is in chunks") == n_notes


def test_a_machine_that_holds_more_engines_than_a_file_starts(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "apiVersion: apps/v1\nkind: Deployment\nspec:\n  replicas: 2\n  template:\n    spec:\n"
        "      containers:\n        - command: [vllm, serve, meta-llama/Llama-3.1-8B-Instruct]\n"
    )
    done = run(*["import", str(file), "h100:4", "--context", "8192"])
    assert done.code == 0
    assert "starts 2 engines; 4 are planned, as many as h100:4 holds" in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "PLAN"], "no framework is named. Add --to NAME, of maxtext, torchtitan"),
        (["export", "PLAN", "--to", "megatron-lm"], 'unknown framework "megatron-lm". Close: "meg'),
        (["export", "PLAN", "--to", "sglang"], "SGLang serves, and the plan trains llama3-8b."),
        (["export", "PLAN", "--to", "maxtext", "--part", "decode"], "this one trains"),
        (["export", "PLAN", "--to", "maxtext", "-o", "no/such/x"], "No such file or directory"),
        (["import", "no.yaml"], "no.yaml: No such file or directory."),
        (["import", "ds.json"], "the file names neither model nor machine. Add MODEL and HARDWARE"),
        (["import", "ds.json", "llama3-8b", "h100:8"], "does not say the batch and sequence len"),
        (
            ["import", "ds.json", "llama3-8b", "h100:8", "x"],
            '"x" is too much: only MODEL and HARDWARE',
        ),
        (["import", "ds.json", "llama3-8b", "h100:8", "--dtype", "fp8"], "--dtype is for serving"),
        (
            ["import", "mt.yml", "llama3-8b", "h100:8"],
            "the file is for 4 chips, h100:8 has 8. Name a machine of 4",
        ),
        (
            ["import", "mt.yml", "h100:8", "--from", "vllm"],
            "mt.yml has no option of vLLM that says a layout.",
        ),
        (
            ["import", "mt.yml", "h100:8"],
            "neither model nor machine, and h100:8 is only one of them. Add MODEL",
        ),
        (
            ["import", "mt.yml", "llama3-8b"],
            "neither model nor machine, and llama3-8b is only one of them. Add HARDWARE",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    Path("mt.yml").write_text("ici_fsdp_parallelism: 4\nper_device_batch_size: 1\n")
    done = run(*[plan if word == "PLAN" else word for word in words])
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_a_script_without_a_name_is_planned_for_the_model_of_its_sizes(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 36 --hidden-size 1280 "
        "--num-attention-heads 20 --micro-batch-size 1 --global-batch-size 64 --seq-length 1024 "
        "--tensor-model-parallel-size 1 --bf16 --use-distributed-optimizer"
    )
    likely = run("import", str(file), "h100:8")
    assert likely.code == 0
    assert likely.out.startswith(
        "As Megatron-LM is told to run it, with a model like gpt2-large:\n"
    )
    named = run("import", str(file), "gpt2-large", "h100:8")
    assert named.out == likely.out.replace(", with a model like gpt2-large", "")
    refused = " ".join(run("import", str(file)).err.split())
    assert (
        "Its sizes are those of gpt2-large. Add HARDWARE: shardwise import FILE HARDWARE."
        in refused
    )


def test_the_batch_of_the_command_line_replaces_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    words = ["import", "ds.json", "llama3-8b", "h100:64", "--batch", "128x4096", "--json"]
    document = json.loads(run(*words).out)
    assert document["workload"]["batch"] == 128
    assert document["strategy"]["mesh"]["fsdp"] == 64


def test_a_gpu_of_an_engine_is_as_many_as_the_file_starts(tmp_path: Path) -> None:
    file = tmp_path / "a.sh"
    command = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct"
    file.write_text(f"{command} --dp-size 4 --tp-size 2 --context-length 8192\n")
    done = run(*["import", str(file), "a100"])
    assert done.code == 0
    assert "4 engines of tensor 2 on a100:8" in " ".join(done.out.split())
