"""Engines of files: sequences at a time by default, devices of a chip, dtypes of weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadInput, BadShape, ShardwiseError
from shardwise.frameworks import registry, replan
from tests.golden.terminal import run


def launch(text: str, file: str = "a.sh") -> Any:
    return registry.read(text, file).launch


VLLM = "vllm serve meta-llama/Llama-3.2-1B --max-model-len 512"
TENSORRT = "tensor_parallel_size: 1\nmax_seq_len: 64\nkv_cache_config: {dtype: fp8}\n"


@pytest.mark.parametrize(
    ("text", "file", "machine", "default"),
    [
        (VLLM, "a.sh", "h100:1", 1024),
        (VLLM, "a.sh", "a100:1", 256),
        (VLLM, "a.sh", "l40s:1", 256),
        (f"{VLLM} -dp 2 -ep", "a.sh", "h100:2", 2048),
        (TENSORRT, "a.yaml", "h100:1", 2048),
    ],
)
def test_an_engine_runs_its_default_number_of_sequences_at_most(
    text: str, file: str, machine: str, default: int
) -> None:
    engine, system = launch(text, file), sw.hardware(machine)
    assert replan.default_batch(engine, system) == default
    if "-ep" in text:
        return
    model = sw.model("llama3.2-1b")
    plan = replan.serving_plan(engine, model, system)
    room = replan.serving_plan(engine, model, system, batch=default + 1)  # fits too
    assert (plan.estimate.decode.batch, room.estimate.decode.batch) == (default, default + 1)


def test_the_default_number_of_sequences_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v.sh").write_text(VLLM)
    notes = " ".join(run("import", "v.sh", "llama3.2-1b", "h100:1").err.split())
    assert "does not say how many sequences run at a time: at most 1,024 are planned" in notes
    assert "at most" not in run("import", "v.sh", "llama3.2-1b", "h100:1", "--batch", "8").err


@pytest.mark.parametrize(
    ("text", "options", "fits"),
    [
        (VLLM, "-dp 4 -tp 2", 8),
        (VLLM, "-dp 4 -tp 2 -ep", 8),  # ranks of one engine
        ("python -m sglang.launch_server --model-path x --context-length 512", "--dp 4 --tp 2", 8),
    ],
)
def test_a_machine_has_all_engines_that_a_file_starts(text: str, options: str, fits: int) -> None:
    engine, model = launch(f"{text} {options}"), sw.model("qwen3-30b-a3b")
    plan = replan.serving_plan(engine, model, sw.hardware(f"h100:{fits}"), batch=8)
    assert plan.hardware.n_chips == fits
    with pytest.raises(ShardwiseError, match="8 chips"):
        replan.serving_plan(engine, model, sw.hardware(f"h100:{fits // 2}"), batch=8)


def test_what_a_plan_has_otherwise_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v.sh").write_text(f"{VLLM} --max-num-batched-tokens 2048")
    notes = " ".join(run("import", "v.sh", "llama3.2-1b", "h100:1", "-o", "p.json").err.split())
    assert "has passes of 2,048 tokens at most; plans have passes of 8,192" in notes
    exported = " ".join(run("export", "p.json", "--to", "vllm").err.split())
    assert "the checkpoint: meta-llama/Llama-3.2-1B is the one whose sizes" in exported
    Path("m.yaml").write_text("global_batch: 8\n")
    case = ("import", "m.yaml", "llama3.2-1b", "v5p:2x2x1", "--from", "maxtext", "--batch")
    assert "no option of MaxText is in it: its defaults" in " ".join(
        run(*case, "8x4096").err.split()
    )


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("vllm serve x", "a.sh"),
        ("python -m sglang.launch_server --model-path x", "a.sh"),
        ("tensor_parallel_size: 1\nmax_batch_size: 8\n", "a.yaml"),
    ],
)
def test_the_longest_sequence_is_by_default_that_of_the_model(text: str, file: str) -> None:
    model, machine = sw.model("gpt2"), sw.hardware("h100:1")
    engine = launch(text, file)
    assert replan.serving_plan(engine, model, machine).workload.context == 1024
    assert replan.serving_plan(engine, model, machine, 512).workload.context == 512
    (note,) = engine.on(model).notes
    assert "the 1,024 tokens of gpt2 are planned" in note
    assert engine.on(model, 512).notes == ()
    with pytest.raises(BadInput, match="neither the file nor gpt2 says the longest sequence"):
        replan.serving_plan(engine, replace(model, max_seq=None), machine)


@pytest.mark.parametrize(
    "text",
    [
        "python -m sglang.launch_server --model-path x --disaggregation-mode {half}",
        'vllm serve x --kv-transfer-config \'{{"kv_role": "{role}"}}\'',
    ],
)
@pytest.mark.parametrize(
    ("half", "role", "other"),
    [("prefill", "kv_producer", "TPOT and tokens/s"), ("decode", "kv_consumer", "TTFT")],
)
def test_the_half_of_disaggregated_serving_is_said(
    text: str, half: str, role: str, other: str
) -> None:
    engine = launch(text.format(half=half, role=role))
    (note,) = engine.notes
    assert engine.part == half
    assert f"the {half} half of disaggregated serving" in note
    assert f"not {other}. Both halves: " in note


def test_an_engine_of_vllm_counts_devices() -> None:
    """A recipe of four chips of 7x has tensor-parallel-size 8."""
    command = "vllm serve x -tp {} --max-model-len 4096 --max-num-seqs 8"
    model, machine = sw.model("llama3-8b"), sw.hardware("7x:2x2x1")
    plan = replan.serving_plan(launch(command.format(8)), model, machine)
    assert plan.strategy.servers.mesh["tensor"] == 4
    text = registry.export(plan, "vllm").text
    assert "tensor-parallel-size: 8\n" in text
    again = replan.serving_plan(launch(text, "a.yaml"), model, machine)
    assert again.strategy.servers.mesh == plan.strategy.servers.mesh
    with pytest.raises(BadShape, match="Write a multiple of 2"):
        replan.serving_plan(launch(command.format(1)), model, machine)


@pytest.mark.parametrize(
    ("text", "file", "drafted"),
    [
        (
            VLLM + ' --speculative-config \'{"method": "mtp", "num_speculative_tokens": 3}\'',
            "a.sh",
            3,
        ),
        (VLLM + " --speculative-config '{broken'", "a.sh", 0),
        (
            "python -m sglang.launch_server --model-path x --speculative-algorithm EAGLE "
            "--speculative-num-steps 2 --speculative-num-draft-tokens 3",
            "a.sh",
            2,
        ),
        (f"{TENSORRT}speculative_config: {{decoding_type: MTP, max_draft_len: 1}}\n", "a.yaml", 1),
    ],
)
def test_drafted_tokens_are_planned(text: str, file: str, drafted: int) -> None:
    engine = launch(text, file)
    assert engine.drafted == drafted
    assert len(engine.notes) == bool(drafted)
    assert any("speculative" in option for option in engine.ignored) == (not drafted)


def test_drafts_make_a_token_faster() -> None:
    command = f"{VLLM} --max-num-seqs 8"
    model, machine = sw.model("llama3.2-1b"), sw.hardware("h100:1")
    plain = replan.serving_plan(launch(command), model, machine)
    text = command + " --speculative-config '{\"num_speculative_tokens\": 2}'"
    plan = replan.serving_plan(launch(text), model, machine)
    assert plan.workload.drafted == 2
    assert plan.estimate.tpot_s < plain.estimate.tpot_s


@pytest.mark.parametrize("framework", registry.names("serve"))
@pytest.mark.parametrize("dtype", ["fp8", "int4"])
def test_weights_of_an_exported_engine_come_back(framework: str, dtype: str) -> None:
    job = sw.Serve(context=4096, weights=dtype, kv="bf16", compute="bf16")
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:1"), job)
    assert launch(registry.export(plan, framework).text, "a.yaml").weights == dtype
