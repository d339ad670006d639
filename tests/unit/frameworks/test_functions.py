"""Functions of scripts: their arguments, their own variables, and what they write."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from shardwise.errors import BadFile
from shardwise.frameworks import registry, shell_script
from shardwise.frameworks.launch import ServingLaunch
from shardwise.frameworks.shell.run import run


def settings(text: str) -> dict[str, Any]:
    return shell_script.settings(run(text, "a.sh"))


SCRIPT = """#!/bin/bash
log() { echo "[$(date)] $*" >&2; }
tensor_size() {
  local size=$1
  if [[ $size == 70b ]]; then
    log "a large model"
    echo 8
    return
  fi
  echo "2"
}
common_args() {
  printf -- '--max-model-len %s ' "$1"
  printf "%s\\n" "--max-num-seqs 64"
}
MODEL=meta-llama/Llama-3.1-70B
TP=$(tensor_size 70b)
vllm serve $MODEL --tensor-parallel-size "$TP" $(common_args 8192) --port `echo 80`
"""


def test_what_a_function_writes_is_a_value() -> None:
    launch = registry.read(SCRIPT, "serve.sh").launch
    assert isinstance(launch, ServingLaunch)
    assert (launch.sizes["tensor"], launch.context, launch.batch) == (8, 8192, 64)
    assert launch.model == "meta-llama/Llama-3.1-70B"


@pytest.mark.parametrize(
    ("commands", "output"),
    [
        ("echo 4", 4),
        ("echo -n 4", 4),
        ("echo -e '4\\n'", 4),
        ("printf '%s' 4", 4),
        ("printf '%d%%' 4", "4%"),
        ("printf '%s-' a b", "a-b-"),
        ("echo $((2 * 2))", 4),
        ("echo $(echo $(echo 4))", 4),
        ("if true; then echo 4; else echo 5; fi", 4),
        ("for N in 1 2; do printf $N; done", 12),
        ("f 4", 4),
        ("f 1; f 2", [1, 2]),
        ("echo warning >&2; echo 4", 4),
    ],
)
def test_outputs(commands: str, output: Any) -> None:
    assert settings(f"f() {{ echo $1; }}\nserve --tp $({commands})")["--tp"] == output


@pytest.mark.parametrize(
    "commands",
    [
        "nvidia-smi -L | wc -l",
        "echo 4 | tail -1",
        "printf '%04d' 4",
        "if [ -f x ]; then echo 4; fi",
        "while read N; do echo 4; done",
        "echo 4; hostname",
        "echo '",
        "true",
        "echo $(hostname)",
    ],
)
def test_what_only_a_shell_knows_stays_as_it_is(commands: str) -> None:
    script = run(f"serve --pp 2 --tp $({commands}) --port 80", "a.sh")
    values = shell_script.settings(script)
    assert (values["--tp"], values["--pp"]) == (f"$({commands})", 2)
    assert script.unknown == []


def test_each_call_has_its_own_arguments() -> None:
    text = """
inner() { echo "$1/$#"; }
outer() {
  A="$(inner $2 x y)-$1-$#"
  inner 9 > log
  set_b "$3"
  C="$1$#"
}
set_b() { B="<$1>$#"; }
outer 1 2
"""
    values = run(text, "a.sh").scope.values
    assert values == {"A": "2/3-1-2", "B": "<>1", "C": "12"}


def test_local_variables_end_with_their_function() -> None:
    text = """
TP=8
size() { local TP=$1 NEW=1; declare -g SEQS=4; PP=$TP; }
size 2
vllm serve m --tensor-parallel-size $TP --pipeline-parallel-size $PP --max-num-seqs $SEQS
"""
    script = run(text, "a.sh")
    values = shell_script.settings(script)
    flags = ("--tensor-parallel-size", "--pipeline-parallel-size", "--max-num-seqs")
    assert [values[flag] for flag in flags] == [8, 2, 4]
    assert "NEW" not in script.scope.values


def test_a_function_returns_early() -> None:
    text = "TP=8\nf() { if [ $TP = 8 ]; then return 0; fi\nTP=4\n}\nf\nserve --tp $TP"
    values = settings(text)
    assert (values["--tp"], values["$"]) == (8, ["serve"])


@pytest.mark.parametrize(
    "text",
    [
        "f() { echo $(f)$(f); }\nserve --tp $(f)",
        "f() { f; f; }\nf",
        "f() { f $(f) $(f); }\nX=$(f)\nserve $X",
    ],
)
def test_functions_that_call_themselves_end(text: str) -> None:
    start = time.monotonic()
    with contextlib.suppress(BadFile):  # it takes too many steps
        run(text, "a.sh")
    assert time.monotonic() - start < 20
