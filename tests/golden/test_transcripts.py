"""What the main commands say, whole: compared with the kept text, in 80 columns, without colour."""

from __future__ import annotations

import re

import pytest

from tests.golden.transcripts import COMMANDS, FOLDER, kept, transcript


@pytest.mark.parametrize("name", COMMANDS)
def test_transcript(name: str) -> None:
    said = transcript(COMMANDS[name])
    assert said == kept(name), "python -m tests.golden.transcripts writes the present text"
    _, *lines = said.splitlines()
    raw = " -o " in COMMANDS[name]  # to paste or to load, whatever its width
    assert raw or not [line for line in lines if len(line) > 80]
    assert not [line for line in lines if line != line.rstrip()]
    assert "\x1b" not in said
    assert "Traceback" not in said


def test_every_file_has_its_command() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(COMMANDS)


SCREENS = [
    "plan_v5p",
    "plan_h100",
    "plan_moe",
    "plan_serve_book",
    "plan_serve_slice",
    "plan_serve_rate",
    "plan_serve_apart",
    "fit_serve",
    "roofline_typed",
    "shard",
    "collective",
    "thresholds",
]


@pytest.mark.parametrize("name", SCREENS)
def test_an_answer_is_a_screen(name: str) -> None:
    _, *lines, _ = kept(name).splitlines()
    assert len(lines) <= 25


def test_numbers_of_operations_are_not_broken() -> None:
    """Long names of a mixture's products take a second line, no number does."""
    text = transcript(COMMANDS["plan_moe"] + " -v")
    assert re.search(r"operation +phase +count +FLOPs, or collective +bytes +time\n", text)


def test_the_plan_of_the_pod_is_the_books() -> None:
    # The book's own answer: pure FSDP is communication-bound, 4- to 8-way tensor parallelism not.
    # It knows no context parallelism; with it, the same 8 chips share a sequence in both ways.
    whole = transcript(COMMANDS["plan_v5p"] + " --max context=1")
    assert re.match(r"Compute-bound\. tensor [48] × ", whole.splitlines()[1])
    text = kept("plan_v5p")
    assert re.match(r"Compute-bound\. tensor 4 × context 2 × ", text.splitlines()[1])
    assert re.search(
        r"best split without tensor\s+parallelism \(.*\)\s+takes\s+1\.\d\d s: \d+ ms more pipeline",
        text,
        re.DOTALL,
    )
