"""Options that do not apply, and inputs on which work would be lost or never end."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import shardwise as sw
from shardwise import cli
from shardwise.cli import progress
from shardwise.measure import machine
from shardwise.plan.serving import build, simulated_pools, simulated_share
from tests.golden.terminal import Stream, run

PLAN = "plan llama3.2-1b v5e:2x2 --train --batch 8x512"
SERVE = "plan llama3.2-1b v5e:2x2 --serve --context 512 --batch 4"
EXPLAIN = "explain llama3.2-1b v5e:2x2 --batch 8x512"
SWEEP = "sweep llama3.2-1b v5e:2x2 --train --batch 8x512"
MATMUL = "roofline 'bf16[B,D] x bf16[D,F] -> bf16[B,F]' --on v5e B=1 D=2 F=3"

REFUSED = [
    # without a value, given twice, contradictory
    (f"{PLAN} -o ''", "✗ -o is empty. Give it a value, or leave it out."),
    (f"{PLAN} --output=", "✗ --output is empty."),
    (f"{PLAN} --mesh '' --fix ' '", "✗ --mesh is empty. Give it a value, or leave it out. ✗ --fix"),
    (f"{EXPLAIN} --what-if ''", "✗ --what-if is empty."),
    ("validate --source ''", "✗ --source is empty."),
    ("fit '' v5e", "✗ MODEL is empty."),
    (f"{PLAN} --batch 4x512", "✗ --batch is given twice."),
    (
        f"{SERVE} --disaggregate --no-disaggregate",
        "and --no-disaggregate contradict",
    ),
    # of other work
    ("fit llama3-8b v5e --train --context 4k --batch 5", "✗ --context, --batch: for --serve only;"),
    ("fit llama3-8b v5e --optimizer sgd", "✗ --optimizer: for --train only."),
    ("models llama3-8b --seq 8k", "✗ --seq: for --kv and --flops only."),
    ("models llama3-8b --flops --dtype int8", "✗ --dtype: for --kv only."),
    (f"{MATMUL} --batch 8", "✗ --batch: for an operation of a model only;"),
    ("roofline llama3-8b v5e --op mlp.up --on v4", "✗ --on: for a matmul only."),
    ("explain plan.json --remat full --peak", "✗ --remat, --peak: a saved plan has its own."),
    (f"{SWEEP} --json -o csv", "✗ -o: --json is another format. Ask for one of them."),
    ("validate --all", "✗ --all: for --serve only;"),
    ("hw diff v5e v5p --slices", "✗ --slices: for a chip only"),
    ("plan llama3-8b h100:8 --serve --compute int4", "✗ h100 has no figure for the dense peak at"),
    ("sweep llama3-8b h100:8 --serve --compute int4", "✗ h100 has no figure for the dense peak at"),
    # the same mistake has the same exit code everywhere
    (f"{SWEEP} --zero 7", "✗ zero 7 is not a stage of ZeRO: 0, 1, 2 or 3."),
    (f"{SWEEP} --zero 7,8 --tensor 1,2", "✗ zero 7 is not a stage of ZeRO: 0, 1, 2 or 3. ✗ zero 8"),
    (f"{PLAN} --mesh zero=7", "✗ zero 7 is not a stage of ZeRO: 0, 1, 2 or 3."),
    ("serve none --prefill --prefill-from http://a:1", "✗ --prefill-from is for servers that"),
    ("serve none --prefill --draft ngram", "✗ --draft is for servers that generate, and not for"),
    # names
    ("models llama3-8b🦙", '✗ unknown model "llama3-8b🦙". Close: "llama3-8b"'),
    ("models 'l l a m a 3 8 b'", '✗ unknown model "l l a m a 3 8 b".'),
    # no end
    ("hw measure 100000", "✗ 100,000 devices: a CPU is measured as at most 64."),
    (
        "hw measure 3",
        "✗ 3 devices: collectives are measured in groups of 2, 4, 8, ... of them. Take 2",
    ),
    ("help plam", '✗ unknown verb "plam". Close: "plan"'),
]


@pytest.mark.parametrize(("command", "told"), REFUSED, ids=[row[0][-50:] for row in REFUSED])
def test_refused(command: str, told: str) -> None:
    said = run(*shlex.split(command))
    assert said.code == 2
    assert told in " ".join(said.err.split())


@pytest.mark.parametrize("command", [f"{PLAN} -v -v", f"{SERVE} --json --json"])
def test_a_flag_may_be_repeated(command: str) -> None:
    assert run(*command.split()).code == 0


@pytest.mark.parametrize("command", [PLAN, SERVE, "hw measure 2"])
@pytest.mark.parametrize("path", ["no/such/plan.json", "."])
def test_an_unwritable_file_is_told_before_the_work(
    monkeypatch: pytest.MonkeyPatch, command: str, path: str
) -> None:
    for module, name in ((sw, "search"), (build, "search"), (machine, "measure")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("worked"))
    said = run(*command.split(), "-o", path)
    assert said.code == 2
    assert said.err.startswith(f"✗ {path}")
    assert "Nothing was saved." in " ".join(said.err.split())


@pytest.mark.parametrize(
    ("command", "option"), [("hw measure 2", "-o"), ("compare plan.json run.jsonl", "--calibrate")]
)
def test_a_chip_that_no_plan_would_read_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, option: str
) -> None:
    monkeypatch.setattr(machine, "measure", lambda *_, **__: pytest.fail("worked"))
    said = run(*command.split(), option, str(tmp_path / "own.v1"))
    assert said.code == 2
    assert "ends in .toml" in " ".join(said.err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no endless file on this system")
@pytest.mark.parametrize("command", ["models /dev/zero", "validate --data /dev/zero"])
def test_an_endless_file(command: str) -> None:
    said = run(*command.split())
    assert said.code == 2
    assert "/dev/zero" in said.err


def test_a_plan_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text('{"schema": "shardwise.plan/2", "model": {}}')
    said = run("explain", "plan.json", "h100:8", "--batch", "8x512")
    assert said.code == 2
    assert "✗ plan.json is a saved plan and has its own machine" in said.err


def test_a_folder_in_place_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one/config.json").mkdir(parents=True)
    Path("two").mkdir()
    Path("two/config.json").symlink_to("gone.json")
    assert "one/config.json: a folder; a config.json is a file." in run("models", "./one").err
    assert "two/config.json: a link to a file that is not" in run("models", "./two").err


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        ("tensor=4,schedule=1f1b", "schedule 1f1b needs pipe above 1: no chips are left for it."),
        ("pipe=1,schedule=1f1b", "schedule 1f1b needs pipe above 1."),
        (
            "tensor=4,context_kind=ring",
            "context_kind ring needs context above 1: no chips",
        ),
        ("fsdp=4,zero=1", "fsdp 4 shards weights, which is zero 3, not zero 1."),
        ("fsdp=1,zero=3", "zero 3 shards weights over fsdp, which is 1: write fsdp in place of"),
        ("pipe=4 --max pipe=2", "pipe 4 is above pipe at most 2."),
    ],
)
def test_a_contradiction_is_named(fixed: str, told: str) -> None:
    said = run(*PLAN.split(), "--fix", *fixed.split())
    assert said.code == 3
    assert told in " ".join(said.err.split())


def test_help_of_a_verb() -> None:
    assert run("help", "plan") == run("plan", "--help")
    assert run("help", "plan", "--serve") == run("plan", "--serve", "--help")
    assert run("help").out == cli.help_text()


@pytest.mark.parametrize(
    ("words", "closed", "told"),
    [
        ("models", ">&-", "✗ the answer cannot be written: stdout is closed.\n"),
        ("models --json", ">&-", "✗ the answer cannot be written: stdout is closed.\n"),
        ("nope", "2>&-", ""),
    ],
)
def test_closed_streams(words: str, closed: str, told: str) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m shardwise {words} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


def test_a_long_context_is_told() -> None:
    told = "warning Sequences of 16,384 tokens exceed the 8,192 that the model is specified for:"
    command = ("plan", "llama3-8b", "h100:1", "--serve", "--batch", "1", "--context")
    assert told in " ".join(run(*command, "16k").out.split())
    assert "specified for" not in run(*command, "8k").out


def test_a_long_sweep_in_a_pipe_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream())
    with progress.counting("plans") as count:
        count(1, 9)
    assert stream.text == ""
    monkeypatch.setattr(progress, "LINE_EVERY_S", -1.0)
    with progress.counting("plans") as count:
        count(2, 9)
    assert stream.text == "2 of 9 plans ...\n"


def test_few_engines_are_simulated_where_each_has_many_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated = []
    real = simulated_pools.engines_to_simulate

    def kept(n_decode: int, n_prefill: int, batch: int) -> tuple[int, int, float]:
        counts = real(n_decode, n_prefill, batch)
        simulated.append((n_decode, counts[0]))
        return counts

    monkeypatch.setattr(simulated_pools, "engines_to_simulate", kept)
    monkeypatch.setattr(simulated_share, "MAX_SEQUENCES", 300)
    command = "plan llama3-8b h100 --serve --prompt 10 --output 10 --rate 3e4/s --batch 140"
    assert run(*command.split()).code == 0
    assert max(simulated)[0] > 2
    assert all(n == min(n_decode, 300 // 140) for n_decode, n in simulated)
