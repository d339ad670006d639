"""Screens that say what they count: the memory that is over, the convention of FLOPs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from shardwise import units
from tests.golden.terminal import run

TOO_LARGE = "plan llama3-70b h100:8 --train --batch 8x4096 --mesh tensor=8"


def test_a_mesh_that_does_not_fit_says_which_memory_is_over() -> None:
    done = run(*shlex.split(TOO_LARGE))
    assert done.code == 3
    text = " ".join(done.out.split())
    memory = json.loads(run(*shlex.split(TOO_LARGE), "--json").out)
    parts = memory["estimate"]["memory_bytes_per_chip"]
    excess = parts["total"] + parts["margin"] - parts["capacity"]
    assert f"over by {units.show_gib(excess)}" in text
    largest = max(("weights", "gradients", "optimizer", "activations"), key=parts.__getitem__)
    assert f"It takes {largest} {units.show_gib(parts[largest])}" in text


def test_a_plan_that_fits_does_not_say_so() -> None:
    done = run(*shlex.split("plan llama3.2-1b h100:8 --train --batch 8x4096 --mesh fsdp=8"))
    assert done.code == 0
    assert "\nover " not in done.out


SMALL_BATCH = "plan gemma3-1b h100:64 --train --batch 2x2048"  # only a pipeline fills the machine


def test_a_layout_that_is_not_trained_is_planned_only_if_it_is_asked_for() -> None:
    done = run(*shlex.split(SMALL_BATCH))
    assert done.code == 3
    refusal = " ".join(done.err.split())
    assert (
        "pipe 4 fits, but the trainer does not run it: a pipeline of a model with 2 groups"
        in refusal
    )
    assert "--any-layout plans it." in refusal
    assert "What works: h100:64" not in refusal
    done = run(*shlex.split(SMALL_BATCH), "--any-layout")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert (
        "The trainer does not run a pipeline of a model with 2 groups of different layers" in text
    )
    assert "; --any-layout admits it." in text


def test_a_search_without_pipelines_says_so() -> None:
    """Of models whose layers differ, whose pipelines the trainer does not run."""
    searched = "plan gemma3-1b h100:8 --train --batch 64x2048"
    said = "Pipelines are not searched: the trainer runs none of a model with 2 groups"
    for words, says in (
        ("", True),
        ("--any-layout", False),
        ("--fix pipe=1", False),
        ("--max pipe=1", False),
        ("--mesh fsdp=8", False),
    ):
        done = run(*shlex.split(f"{searched} {words}"))
        assert (done.code, said in " ".join(done.out.split())) == (0, says), words
    one_kind = run(*shlex.split("plan llama3.2-1b h100:8 --train --batch 64x2048"))
    assert "Pipelines are not searched" not in one_kind.out


def test_a_split_that_is_not_trained_says_so() -> None:
    command = "plan llama3-8b h100:8 --train --batch 64x2048"
    chosen = "--mesh data=2,pipe=4,schedule=dualpipe"
    text = " ".join(run(*shlex.split(f"{command} {chosen}")).out.split())
    said = "does not run schedule dualpipe; no plan that it runs has the given choices."
    assert said in text
    details = " ".join(run(*shlex.split(f"{command} {chosen} -v")).out.split())
    assert "runtime does not yet. Run shardwise plan with --fix schedule=zb-v." in details
    trained = run(*shlex.split(f"{command} --mesh data=2,pipe=4"))
    assert (trained.code, "\ntrain " in trained.out) == (0, False)
    both = run(*shlex.split(f"{command} {chosen} --any-layout"))
    assert (both.code, both.err) == (
        2,
        "✗ --mesh gives the split, --any-layout searches for one. Use one.\n",
    )


def test_one_chip_is_said_once() -> None:
    text = run(*shlex.split("plan llama3.2-1b h100:1 --train --batch 8x2048")).out
    assert "-bound. One chip. One step = " in " ".join(text.split())


def test_a_search_that_chose_the_machine_says_so() -> None:
    text = " ".join(run(*shlex.split("plan llama3-8b v5e --serve")).out.split())
    assert "Rule: cheapest token on any number of chips with TPOT ≤ 50.0 ms" in text
    text = " ".join(run(*shlex.split("plan llama3-8b v5e:2x4 --serve")).out.split())
    assert "Rule: cheapest token with TPOT ≤ 50.0 ms" in text


def test_prefill_at_an_mfu_counts_stages_and_prompts() -> None:
    """A prompt takes as long on two stages as on one of them with all layers."""

    def prefill(machine: str, mesh: str) -> dict[str, Any]:
        options = f"llama3-8b {machine} --serve --batch 64 --mesh {mesh} --json"
        estimate: dict[str, Any] = json.loads(run("plan", *options.split()).out)["estimate"]
        return estimate["prefill"]  # type: ignore[no-any-return]

    one = prefill("h100:4", "tensor=4")
    two = prefill("h100:8", "tensor=4,pipe=2")
    assert two["at_mfu"]["step_s"] == pytest.approx(one["at_mfu"]["step_s"])
    for passes in (one, two):
        at_mfu = passes["at_mfu"]
        flops_s = passes["mfu"] * passes["step_s"]["expected"]
        assert at_mfu["mfu"] * at_mfu["step_s"] == pytest.approx(flops_s)
        assert at_mfu["step_s"] > passes["step_s"]["lower"]
    screen = run(*shlex.split("explain llama3-8b h100:8 --serve --batch 64 --mesh tensor=4,pipe=2"))
    assert " a pass, MFU " in screen.out


def test_fit_names_the_dtype_of_the_kv_cache() -> None:
    note = "KV cache in the dtype of the weights"
    assert note in run("fit", "deepseek-v3", "h200", "--serve").out
    assert note not in run("fit", "gpt-oss-20b", "h100", "--serve").out  # its row says KV bf16


def test_conventions_of_flops() -> None:
    counts = json.loads(run("models", "llama3-8b", "--flops", "--seq", "8192", "--json").out)
    ways = counts["training_flops_per_token_by_convention"]
    training = counts["training_flops_per_token"]
    assert ways["model, causal"] == training["total"]
    scores = training["scores"]
    assert ways["model, full square"] - ways["model, causal"] == pytest.approx(scores, rel=1e-3)
    assert ways["hardware, causal"] == pytest.approx(4 / 3 * training["total"])
    assert ways["6 per parameter"] == pytest.approx(training["total"] - scores)
    screen = run("models", "llama3-8b", "--flops", "--seq", "8192").out
    assert all(name in screen for name in ways)


def test_limits_of_tensor_parallelism_are_those_that_a_node_has() -> None:
    """The book's sections 5 and 12: two nodes only if one is within its limit."""
    dense = " ".join(run(*shlex.split("thresholds llama3-70b h100:64")).out.split())
    assert "up to 16-way tensor parallelism (tensor over two nodes)" in dense  # 19.6 of 16 GPUs
    fine = " ".join(run(*shlex.split("thresholds qwen3-30b-a3b h100:64")).out.split())
    assert "no tensor parallelism (0.35 ways: tensor inside a node)" in fine
    assert "tensor over two nodes" not in fine


@pytest.mark.parametrize(
    ("machine", "batch", "said"),
    [
        ("h100:64", "64x4096", "4,096 tokens a chip; enough for FSDP or data across nodes"),
        ("h100:64", "64x2304", "2,304 tokens a chip; enough for FSDP or data inside a node; too"),
        ("h100:64", "64x1024", "1,024 tokens a chip; too few for FSDP or data inside a node"),
        ("v5p:4x4x4", "64x4096", "4,096 tokens a chip; best split FSDP 34.2 x tensor 1.9 (§5)"),
    ],
)
def test_a_batch_is_beside_the_limits(machine: str, batch: str, said: str) -> None:
    done = run(*shlex.split(f"thresholds llama3-70b {machine} --batch {batch}"))
    assert said in " ".join(done.out.split())


def test_one_chip_has_no_communication_to_hide() -> None:
    one = run(*shlex.split("plan llama3-8b h100:1 --serve --context 2048"))
    assert "(roofline / expected rates)" in one.out
    assert "hidden" not in one.out.partition("\nwhy")[0]
    two = run(*shlex.split("plan llama3-8b h100:2 --serve --context 2048 --mesh tensor=2"))
    assert "(all communication hidden / none)" in two.out


def test_a_folder_beside_an_unknown_name_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "The file or folder of this name is ./m1." in " ".join(run("models", "m1").err.split())
    assert "./" not in run("models", "v6").err.replace("./NAME", "")


def test_two_measurements_of_one_machine_are_told_apart() -> None:
    done = run("hw", "diff", "h100", "h100")
    assert done.out.splitlines()[0] == "second against first: 0 figures differ."
    assert run("hw", "diff", "h100", "b200").out.startswith("b200 against h100: ")


def test_an_engine_says_how_many_chips_share_an_expert() -> None:
    engine = "plan mixtral-8x7b h100:8 --serve --context 4096 --mesh tensor=8,expert_tensor="
    said = {1: "(whole experts)", 2: "(an expert over 2 chips)"}
    for n, words in said.items():
        assert f"tensor 8 {words} on h100:8" in " ".join(
            run(*shlex.split(f"{engine}{n}")).out.split()
        )
    assert "tensor 8 on h100:8" in " ".join(run(*shlex.split(f"{engine}8")).out.split())
