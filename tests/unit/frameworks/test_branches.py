"""Branches and loops of scripts: those that a script without arguments takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.frameworks import registry, shell_script
from shardwise.frameworks.config_files import beside
from shardwise.frameworks.launch import ServingLaunch
from shardwise.frameworks.shell_branches import followed
from shardwise.frameworks.shell_conditions import holds


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("[ $TP = 8 ]", True),
        ('[[ "${TP}" != 8 ]]', False),
        ("[ $TP -gt 4 ]", True),
        ("(( TP * 2 > 16 ))", False),
        ("(( $TP >= 8 ))", True),
        ('[ -z "$UNSET" ]', True),
        ('[ -n "${UNSET:-}" ]', False),
        ('[ "$MODE" == train* ]', True),
        ("$FP8", True),
        ("! $FP8", False),
        ("[ ! -z $TP ]", True),
        ('[ "$1" = "--help" ]', False),
        ("[ $# -gt 0 ]", False),
        ('[ "$MODE" = training ] && [ $TP -lt 8 ] || true', True),
        ("[ $TP -eq 8 -a $MODE = other ]", False),
        ("[ -f weights.bin ]", None),
        ("[ -f weights.bin ] && [ $TP = 4 ]", False),
        ("command -v nvidia-smi", None),
        ("[ $SLURM_NNODES -gt 1 ]", None),
        ('[ "$(hostname)" = a ]', None),
        ("[ $MODE -gt 1 ]", None),
        ("[ -n ${MODE:+yes} ]", None),
        ("[ 'a", None),
    ],
)
def test_conditions(condition: str, answer: bool | None) -> None:
    assert holds(condition, {"TP": "8", "MODE": "training", "FP8": "true"}) is answer


BRANCHES = """
SIZE=${SIZE:-8b}
FP8=0
if [[ $SIZE == 70b ]]; then
  TP=8
  if [ $FP8 = 1 ]; then ARGS="--never"; fi
elif [[ $SIZE == 8b ]]
then
  TP=2
else
  TP=1
fi
case "$SIZE" in
  70b|405b) PP=4 ;;
  8*) PP=2
      ;;
  *) PP=1 ;;
esac
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP="$2"; shift 2 ;;
  esac
done
[ $FP8 = 1 ] && PP=16
[ $FP8 = 1 ] || EXTRA=--bf16
ARGS=(--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP)
if [ $FP8 -eq 1 ]; then
  ARGS+=(--fp8-format hybrid)
fi
for LEN in 4096 8192; do
  torchrun pretrain_gpt.py --seq-length $LEN $EXTRA ${ARGS[@]}
done
"""


def test_the_branches_that_a_script_takes_are_read() -> None:
    settings = shell_script.read(BRANCHES, "a.sh")
    assert settings["--tensor-model-parallel-size"] == 2
    assert settings["--pipeline-model-parallel-size"] == 2
    assert settings["--seq-length"] == 4096
    assert settings["--bf16"] is True
    assert "--fp8-format" not in settings


def test_variables_of_the_environment_choose_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZE", "70b")
    settings = shell_script.read(BRANCHES, "a.sh")
    assert settings["--tensor-model-parallel-size"] == 8
    assert settings["--pipeline-model-parallel-size"] == 4


def test_lines_that_are_not_read_are_named() -> None:
    branches = followed(BRANCHES)
    assert "--fp8-format" in branches.skipped
    assert branches.loops == [("LEN", "4096")]
    assert branches.unknown == []
    notes = registry.read(BRANCHES, "a.sh").launch.notes
    assert any("takes other branches" in note and "--fp8-format" in note for note in notes)
    assert any("the loop over LEN" in note and "LEN=4096" in note for note in notes)


def test_branches_that_only_the_shell_can_choose_are_read_and_named() -> None:
    text = """
ARGS=(--tensor-model-parallel-size 2)
if [ -d /fast ]; then ARGS+=(--fp8-format hybrid); else TP=1; fi
torchrun pretrain_gpt.py --seq-length 128 --global-batch-size 8 ${ARGS[@]}
"""
    (note,) = [note for note in registry.read(text, "a.sh").launch.notes if "shell" in note]
    assert note == (
        "read, though only the shell knows whether [ -d /fast ] holds: ARGS, --fp8-format, TP."
    )


def test_words_and_semicolons_in_quotes_are_no_branches() -> None:
    text = (
        "echo 'if; then' \"case a in; done\"  # if\nif true; then A=1; fi\nserve --tp $A --if-done"
    )
    assert shell_script.read(text, "a.sh")["--tp"] == 1


@pytest.mark.parametrize("text", ["fi\ndone\nesac\n", "case\n", "if [ a\n", "else\nthen\n;;\n"])
def test_fragments_of_branches_are_read(text: str) -> None:
    assert shell_script.read(f"{text}", "a.sh")["$"] is not None


def test_files_beside_a_script_are_read(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "sizes.sh").write_text("TP=4\n")
    (tmp_path / "engine.yaml").write_text("tensor-parallel-size: 2\npipeline-parallel-size: 2\n")
    script = tmp_path / "run.sh"
    script.write_text(
        'source "$(dirname "$0")/env/sizes.sh"\n'
        "vllm serve m --tensor-parallel-size $TP --config engine.yaml\n"
    )
    content = registry.read(script.read_text(), str(script), None, beside(str(script)))
    assert isinstance(content.launch, ServingLaunch)
    assert content.launch.sizes["tensor"] == 4  # the command counts before the file
    assert content.launch.sizes["pipe"] == 2
    assert content.elsewhere == ()


def test_files_that_are_not_beside_a_script_are_named() -> None:
    text = "vllm serve m --tensor-parallel-size 4 --config engine.yaml --chat-template a.json"
    assert registry.read(text, "a.sh").elsewhere == ("engine.yaml",)


def test_a_script_that_sources_itself_ends(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("source run.sh\nvllm serve m --tensor-parallel-size 4\n")
    content = registry.read(script.read_text(), str(script), None, beside(str(script)))
    assert content.launch.sizes["tensor"] == 4
