"""`shardwise explain`: a screen that answers first, the same numbers as JSON, and every mistake."""

from __future__ import annotations

import io
import json
import os
import shlex
import threading
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.cli.explanation import parse_changes
from shardwise.errors import BadInput
from tests.golden.terminal import run

SMALL = "explain llama3-8b v5e:4x4 --batch 16x2048"
LINES = 25


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("plans") / "plan.json")
    model, system = sw.model("mixtral-8x7b"), sw.hardware("h100:32")
    sw.plan(model, system, sw.Train(batch=128, seq=2048), {"schedule": "none"}).save(path)
    return path


def test_one_screen(saved: str) -> None:
    for command in (SMALL, f"explain {saved}"):
        said = run(*shlex.split(command))
        assert said.code == 0, said.err
        lines = said.out.splitlines()
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= 80
        assert "-bound by ×" in lines[0]
        assert said.out.count("runner-up") == 2
        assert "peak_flops" in said.out
        assert "×0.5 " in said.out


def test_the_question_is_answered_first(saved: str) -> None:
    said = run("explain", saved, "--what-if", "node x0.1, scale_out x2")
    assert said.code == 0, said.err
    assert said.out.startswith("node ×0.1, scale_out ×2: this split takes ")
    told = json.loads(run("explain", saved, "--what-if", "node x0.1,scale_out x2", "--json").out)
    assert told["what_if"]["factors"] == {"node": 0.1, "scale_out": 2.0}
    stays = "The best split stays" in " ".join(said.out.split())
    assert stays == told["what_if"]["stays"]


def test_verbose_tells_the_way(saved: str) -> None:
    said = run("explain", saved, "--what-if", "hbm x0.1", "-v")
    assert "No split fits." in " ".join(said.out.split())
    assert "Decisions that lead to this split, in the order of the book" in said.out
    assert "At least" in said.out or "at least" in said.out
    assert "not used" in said.out


def test_a_saved_plan_and_its_model_explain_alike(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    options = ["llama3-8b", "v5e:4x4", "--batch", "16x2048", "--fix", "tensor=2", "--peak"]
    assert run("plan", *options, "--train", "-o", path).code == 0
    asked = run("explain", *options, "--json")
    assert json.loads(asked.out) == json.loads(run("explain", path, "--json").out)
    given = run("explain", "llama3-8b", "v5e:4x4", "--batch", "16x2048", "--mesh", "fsdp=16")
    assert "fsdp 16 on v5e:4x4" in " ".join(given.out.split())


BAD = [
    ("explain", 2, "Missing argument 'PLAN.json|MODEL'"),
    ("explain nothere.json", 2, "✗ nothere.json: No such file"),
    ("explain llama3-8b", 2, "shardwise explain llama3-8b HARDWARE --batch NxT, or --serve."),
    ("explain llama3-8b v5e:4x4", 2, "✗ no batch is given."),
    ("explain llama3-8c v5e:4x5 --batch 16 --what-if ici", 2, '✗ --what-if "ici" is not NAME'),
    ("explain llama3-8c v5e:4x5 --batch 16 --what-if ici", 2, '✗ batch "16" is not SEQUENCES'),
    ("explain llama3-8c v5e:4x5 --batch 16 --what-if ici", 2, '✗ unknown model "llama3-8c"'),
    (f"{SMALL} --mesh fsdp=16 --fix tensor=2", 2, "✗ --mesh gives the whole split, --fix a part"),
    (f"{SMALL} --what-if 'node x2'", 2, "✗ node: v5e has no figure for it to multiply."),
    (f"{SMALL} --what-if 'icy x2'", 2, '✗ unknown number of the hardware "icy". Close: "ici"'),
    ("explain p.json --batch 16x2048 --fix tensor=2", 2, "✗ --batch, --fix: a saved plan has its"),
    ("explain llama3-70b v5e:2x2 --batch 4x4096", 3, "✗ does not fit: llama3-70b on v5e:2x2"),
    ("explain llama3-8b v5e:4x4 --batch 16x2048 --fix tensor=3", 2, "tensor 3"),
]


@pytest.mark.parametrize(("command", "code", "words"), BAD)
def test_mistakes(command: str, code: int, words: str) -> None:
    said = run(*shlex.split(command))
    assert said.code == code
    assert said.out == ""
    assert " ".join(words.split()) in " ".join(said.err.split())


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"schema": "other"}')
    said = run("explain", str(path))
    assert said.code == 2
    assert 'schema "other"' in said.err


def test_a_plan_is_read_whatever_its_file_is_called(saved: str, tmp_path: Path) -> None:
    expected = run("explain", saved, "--what-if", "hbm x1").out
    text = Path(saved).read_bytes()
    for name, content in (
        ("plan.txt", text),
        ("PLAN.JSON", text),
        ("plan", text),
        ("mark.json", b"\xef\xbb\xbf" + text),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        said = run("explain", str(path), "--what-if", "hbm x1")
        assert (said.code, said.out, said.err) == (0, expected, "")


@pytest.mark.parametrize("from_stdin", [True, False], ids=["stdin", "/dev/fd"])
def test_a_plan_is_read_from_a_pipe(
    saved: str, from_stdin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, other_end = os.pipe()
    writer = threading.Thread(target=write_and_close, args=(other_end, Path(saved).read_bytes()))
    writer.start()
    with open(end) as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        said = run("explain", "-" if from_stdin else f"/dev/fd/{end}", "--what-if", "hbm x1")
    writer.join()
    assert said.code == 0, said.err
    assert said.out == run("explain", saved, "--what-if", "hbm x1").out


def write_and_close(descriptor: int, content: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(content)


def test_stdin_that_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"[]")))
    said = run("explain", "-")
    assert said.code == 2
    assert "✗ stdin is JSON, but not a plan: a plan is an object {...}." in said.err


def test_a_key_that_is_not_read_is_noted(saved: str, tmp_path: Path) -> None:
    plan = json.loads(Path(saved).read_text())
    plan["comment"] = "mine"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    said = run("explain", str(path), "--what-if", "hbm x1")
    assert said.code == 0
    assert said.err.startswith("note: ")
    assert "unknown key $.comment is ignored." in " ".join(said.err.split())


@pytest.mark.parametrize("serve", [[], ["--serve"]])
def test_a_saved_plan_has_its_own_machine(saved: str, serve: list[str]) -> None:
    said = run("explain", saved, "h100:8", "--batch", "8x1024" if not serve else "8", *serve)
    assert said.code == 2
    assert "is a saved plan and has its own machine." in " ".join(said.err.split())


def test_changes() -> None:
    assert parse_changes("ici x0.5, hbm × 2,flops*1e1") == {"ici": 0.5, "hbm": 2, "flops": 10}
    for text, words in (
        ("ici x0", "between 0.001 and 1000"),
        ("ici xnan", "between 0.001 and 1000"),
        ("ici xtwo", "is not a number"),
        ("ici x2,ici x3", "is given twice"),
        ("", "NAME xFACTOR"),
        ("ici 2", "NAME xFACTOR"),
    ):
        with pytest.raises(BadInput, match=words):
            parse_changes(text)
    with pytest.raises(BadInput) as error:
        parse_changes("icy x2,hbm xx")
    assert len(error.value.problems) == 2
