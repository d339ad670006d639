"""All problems of a run's inputs are told at once, before JAX starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.train.recipe import Recipe
from shardwise.train.tokens import open_tokens
from tests.golden.terminal import run
from tests.host import host
from tests.unit.train.command import tokens

MODEL = sw.ModelConfig.dense(n_layers=1, d_model=32, d_ff=64, n_heads=4, vocab=261)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `plan.json` and tokens in `data`."""
    monkeypatch.chdir(tmp_path)
    layout = Layout(mesh=Mesh(), micro_batch=8)
    plan = sw.evaluate(MODEL, host(tmp_path, 1), sw.Train(batch=8, seq=16), layout)
    plan.save(str(tmp_path / "plan.json"))
    tokens(tmp_path)
    return tmp_path


def told(*words: str, plan: str = "plan.json") -> list[str]:
    """The problems that `train` tells, each in one line."""
    answer = run("train", plan, *words)
    assert (answer.code, answer.out) == (2, "")
    lines = answer.err.replace("\n  ", " ").splitlines()
    assert all(line.startswith("✗ ") for line in lines)
    return [line[2:] for line in lines]


@pytest.mark.usefixtures("folder")
def test_problems_of_options_data_and_folders_together() -> None:
    file = "data/data.json"
    problems = told(
        *("--data", "none,data=x", "--steps", "1.5", "--keep", "0"),
        *("--schedule", "linear", "--on-bad", "wait", "--rate", "inf", "--decay", "nan"),
        *("--from", ".", "--export", f"{file}/out", "--log", "."),
        *("--checkpoint", f"{file}/saved", "--log-every", "0", "--process", "1"),
    )
    starts = (
        '--keep "0" is below 1.',
        "--processes and --process need --coordinator",
        '--log-every "0" is below 1.',
        '--steps "1.5" is not a whole number.',
        'unknown schedule "linear".',
        'unknown value of on_bad "wait".',
        "rate inf is not a finite number above 0.",
        "decay nan is not a finite number from 0.",
        "none has no tokens",
        '"x" of --data is not a weight',
        f"checkpoints cannot be written to {file}/saved: Not a directory.",
        ". is a folder; --log names a file.",
        ".: a folder without config.json.",
        f"weights cannot be written to {file}/out: Not a directory.",
    )
    missing = [start for start in starts if not any(p.startswith(start) for p in problems)]
    assert (missing, len(problems)) == ([], len(starts)), problems


@pytest.mark.usefixtures("folder")
def test_problems_of_options_beside_a_plan_that_cannot_be_read() -> None:
    problems = told("--rate", "-1", "--warmup", "3", plan="other.json")
    assert [problem.split(":")[-1] for problem in problems[:1]] == [" No such file or directory."]
    assert problems[1:] == [
        "rate -1 is not a finite number above 0.",
        "no data is given: --data DIR, made by: shardwise data tokenize.",
    ]


@pytest.mark.parametrize("name", ["rate", "clip", "spike", "capacity"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_numbers_of_a_recipe_are_finite(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{name} .* is not a finite number above 0"):
        Recipe(steps=1, **{name: value})  # type: ignore[arg-type]


@pytest.mark.usefixtures("folder")
def test_from_beside_resume() -> None:
    words = ("--data", "data", "--steps", "1k")
    saving = ("--checkpoint", "saved", "--resume")
    start = ("--from", ".")
    assert told(*words, *saving, *start)[0].startswith("--from starts a run and --resume ")


@pytest.mark.parametrize("name", ["model.gguf", "."])
def test_gguf_files_are_named(folder: Path, name: str) -> None:
    (folder / "model.gguf").write_bytes(b"GGUF\x03\0\0\0")
    words = ("--data", "data", "--steps", "1")
    (problem,) = told(*words, "--from", name)
    assert problem.startswith("model.gguf: a GGUF file, which has no config.json.")
    assert 'gguf_file="model.gguf"' in problem
    (folder / "plan.json").unlink()
    answer = run("plan", "model.gguf", "h100:8", "--train", "--batch", "8x128")
    assert (answer.code, answer.err[:2]) == (2, "✗ ")
    assert "a GGUF file" in answer.err.replace("\n  ", " ")


def test_damaged_tokens_are_refused(folder: Path) -> None:
    open_tokens("data").verify()
    path = folder / "data" / "00000.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    damaged = open_tokens("data")
    with pytest.raises(BadFile, match=r"00000\.bin is damaged: its checksum \(crc32\) is "):
        damaged.verify()
    plan = sw.load("plan.json")
    assert isinstance(plan, sw.Plan)
    with pytest.raises(BadFile, match="is damaged"):
        sw.train(plan, data="data", steps=1)
