"""Branches and loops of scripts: those that a script without arguments takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.errors import BadFile
from shardwise.frameworks import registry, shell_script
from shardwise.frameworks.config_files import beside
from shardwise.frameworks.launch import ServingLaunch
from shardwise.frameworks.shell.run import run


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
        ("[ -n ${MODE:+yes} ]", True),
    ],
)
def test_conditions(condition: str, answer: bool | None) -> None:
    script = run(f"TP=8 MODE=training FP8=true\nif {condition}; then A=1; else A=0; fi", "a.sh")
    assert script.scope.values["A"] == ("1" if answer else "0")
    assert bool(script.doubtful) == (answer is None)


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
    settings = shell_script.settings(run(BRANCHES, "a.sh"))
    assert settings["--tensor-model-parallel-size"] == 2
    assert settings["--pipeline-model-parallel-size"] == 2
    assert settings["--seq-length"] == 4096
    assert settings["--bf16"] is True
    assert "--fp8-format" not in settings


def test_variables_of_the_environment_choose_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZE", "70b")
    settings = shell_script.settings(run(BRANCHES, "a.sh"))
    assert settings["--tensor-model-parallel-size"] == 8
    assert settings["--pipeline-model-parallel-size"] == 4


def test_lines_that_are_not_read_are_named() -> None:
    branches = run(BRANCHES, "a.sh")
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
        "read, though only the shell knows whether [ -d /fast ] holds: ARGS, --fp8-format; the "
        "last value counts."
    )


SETUP = """
pip_install() { if [ -f done ]; then pip install --upgrade --no-cache-dir pkg; fi; }
pip_install
DEBUG=0
if [ $DEBUG = 1 ]; then
  IFS=,
  local_only=1
  NODES=2
  ls --color x
  ARGS="--tensor-model-parallel-size 8 --recompute-granularity full"
fi
for LEN in 1 2; do for GPU in 0 1; do train $GPU; done; done
torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel --seq-length 128 \\
  --overlap-grad-reduce \\
  --micro-batch-size 1 --global-batch-size 8 --bf16 --nnodes ${NODES:-1} $ARGS
"""


def test_only_what_could_change_the_plan_is_named() -> None:
    skipped, *loops = registry.read(SETUP, "a.sh").launch.notes
    assert skipped == (
        "not read, as the script takes other branches: NODES, ARGS, --recompute-granularity."
    )
    assert sorted(loops) == [
        "of the loop over GPU the first turn is planned, GPU=0.",
        "of the loop over LEN the first turn is planned, LEN=1.",
    ]


def test_a_loop_is_named_once() -> None:
    text = "f() { for N in 1 2; do vllm serve m --port $N; done; }\nf\nf\nvllm serve m --tp 2"
    notes = registry.read(text, "a.sh").launch.notes
    assert sum("loop over N" in note for note in notes) == 1


def test_words_and_semicolons_in_quotes_are_no_branches() -> None:
    text = (
        "echo 'if; then' \"case a in; done\"  # if\nif true; then A=1; fi\nserve --tp $A --if-done"
    )
    assert shell_script.settings(run(text, "a.sh"))["--tp"] == 1


@pytest.mark.parametrize("text", ["fi\ndone\nesac\n", "case\n", "if [ a\n", "else\nthen\n;;\n"])
def test_fragments_of_branches_are_read(text: str) -> None:
    assert shell_script.settings(run(f"{text}", "a.sh"))["$"] is not None


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


def test_variables_have_the_values_of_their_moment() -> None:
    text = "TP=2\nvllm serve m --tensor-parallel-size $TP\nTP=4\n"
    assert shell_script.settings(run(text, "a.sh"))["--tensor-parallel-size"] == 2


def test_functions_are_read_where_they_are_called() -> None:
    text = """
set_args() { TP=4; SEQS=64; }
set_defaults() { TP=1; SEQS=8; }
launch() {
  local model=$1; shift
  vllm serve $model --tensor-parallel-size $TP --max-num-seqs $SEQS --port ${2:-8000} "$@"
}
set_args
launch a/model --max-model-len 8192 &
wait
"""
    settings = shell_script.settings(run(text, "a.sh"))
    assert (settings["--tensor-parallel-size"], settings["--max-num-seqs"]) == (4, 64)
    assert settings["--max-model-len"] == 8192
    assert settings["$"][:3] == ["vllm", "serve", "a/model"]


def test_a_loop_that_collects_options_takes_all_turns() -> None:
    text = """
OPTS=()
for kv in tensor-parallel-size=4 max-num-seqs=96; do
  OPTS+=("--${kv%%=*}" "${kv##*=}")
done
for option in "--kv-cache-dtype fp8" "--quantization fp8"; do MORE="$MORE $option"; done
CMD="vllm serve m"
CMD+=" ${OPTS[*]} $MORE"
eval $CMD
"""
    script = run(text, "a.sh")
    assert script.loops == []
    assert " ".join(script.commands[0]) == (
        "vllm serve m --tensor-parallel-size 4 --max-num-seqs 96 --kv-cache-dtype fp8 "
        "--quantization fp8"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[ a == a ]] && X=1 || X=2; f $X", "f 1"),
        ("[[ a == b ]] && X=1 || X=2; f $X", "f 2"),
        ("let X=2*3; f $X", "f 6"),
        ("((X=2*3)); ((X+=1)); f $X", "f 7"),
        ("X=$(expr 2 \\* 3); f $X", "f 6"),
        ("declare -A T=( [70b]=4 [8b]=1 ); S=70b; f ${T[$S]} ${#T[@]}", "f 4 2"),
        ('A=(x "y z"); A+=(w); f "${A[1]}" ${#A[@]}', "f|y z|3"),
        ("S=llama; f ${S^^} ${S^} ${S/l/j} ${S:1:2} ${#S}", "f LLAMA Llama jlama la 5"),
        ("P=a/b.tar.gz; f ${P##*/} ${P%.*} ${P%%.*} ${P#*/}", "f b.tar.gz a/b.tar a/b b.tar.gz"),
        ("f ${X:-a b} \"${Y:-c d}\" '$Z'", "f|a|b|c d|$Z"),
        ('f "" $UNSET end', "f||$UNSET|end"),
        ("if ! false; then f 1; fi", "f 1"),
        ("f a > out 2>&1 < in && g", "f a;g"),
        ("f a 2> err | tee log &", "f a;tee log"),
        ("A=1 B=2 f $A", "A=1 B=2 f $A"),
        ('bash -c "f --x 1"', "bash -c;f --x 1"),
        ("f a \\\n  # no\n", "f a"),
        ("for ((i=0;i<4;i++)); do f; done", "f"),
        ('for x in "$@"; do f; done; g', "g"),
        ("echo f --x; g", "g"),
        ("s() { shift 3; f $1 $#; }; s a b c d e", "f d 2"),
        ("X=$((1 << 3)); f $X", "f 8"),
        ("X=$2; X=${X:-16}; f $X", "f 16"),
        ('s() { local x=${1:-7}; f $x; }; s "$1"', "f 7"),
        ("until false; do f; done", "f"),
        ("for i in $(seq 2 2 6); do A+=($i); done; f ${A[*]}", "f 2 4 6"),
        ("for i in {3..1}; do A+=(x$i); done; f ${A[*]} {a,b}", "f x3 x2 x1 {a,b}"),
        ("declare -A T=([a]=1); A=(x); f ${T[b]} ${A[3]} ${A[n]} end", "f ${A[n]} end"),
    ],
)
def test_forms_of_the_shell(text: str, words: str) -> None:
    separator = "|" if "|" in words else " "
    commands = [separator.join(command) for command in run(text, "a.sh").commands]
    assert ";".join(commands) == words


def test_values_that_grow_and_functions_without_end_are_bounded() -> None:
    assert len(run("A=$A\nB=$A$B\nf() { f; }\nf\n", "a.sh").commands) <= 1
    with pytest.raises(BadFile, match="takes more than 20,000 steps"):
        run("f() { f; f; }\nf\n", "a.sh")
    loops = "".join(f"for i{n} in {'a ' * 50}; do " for n in range(5)) + "A=$A$A; " + "done; " * 5
    with pytest.raises(BadFile, match="takes more than 20,000 steps"):
        run(loops, "a.sh")
    arrays = "A=(x y)\n" + 'A+=("${A[@]}")\n' * 60 + 'f "${A[@]}"'
    assert len(run(arrays, "a.sh").commands[0]) < 20_000
    wide = f"A={'x' * 9000}\nf " + "$A" * 1000
    assert sum(map(len, run(wide, "a.sh").commands[0])) < 2 << 20
    with pytest.raises(BadFile, match="steps"):
        registry.read(
            "for i in {}; do {} done".format("a " * 200, "for j in 1 2 3; do f; done;" * 90), "a.sh"
        )


def test_of_several_servers_the_first_is_planned() -> None:
    text = "vllm serve a --tensor-parallel-size 4 &\nvllm serve b --tensor-parallel-size 1 &\n"
    launch = registry.read(text, "a.sh").launch
    assert isinstance(launch, ServingLaunch)
    assert (launch.model, launch.sizes["tensor"]) == ("a", 4)
    assert any("of its 2 servers the first is planned" in note for note in launch.notes)


def test_nodes_of_slurm_are_variables() -> None:
    text = "#SBATCH --nodes=2\nvllm serve a --pipeline-parallel-size $SLURM_JOB_NUM_NODES\n"
    assert registry.read(text, "a.sh", "vllm").launch.sizes["pipe"] == 2


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("[ $((tp * 2)) -eq 8 ] || continue; {}", 4),
        ("if [ $tp -lt 8 ]; then continue; fi; {}", 8),
        ("[ $tp -gt 2 ] && break; {}", 2),
        ("case $tp in 2) continue;; esac; {}", 4),
        ("for pp in 1 2; do [ $((tp * pp)) = 8 ] || continue; {}; done", 4),
        ("[ -f done-$tp ] && continue; {}", 2),  # which only the shell knows
    ],
)
def test_a_turn_of_a_loop_that_is_left_has_no_command(body: str, size: int) -> None:
    command = "vllm serve m --tensor-parallel-size $tp --max-model-len 4096"
    text = f"for tp in 2 4 8; do {body.format(command)}; done"
    launch = registry.read(text, "a.sh").launch
    assert isinstance(launch, ServingLaunch)
    assert launch.sizes["tensor"] == size


@pytest.mark.parametrize(
    ("terms", "size"),
    [
        ("$((2**3))", 8),
        ("$((16 / 2 > 4 ? 8 : 4))", 8),
        ("$(( (TP > 4 ? 2 : 4) * 2 ))", 8),
        ("$((TP * 2 == 8 ? TP * 2 : 1))", 8),
    ],
)
def test_sizes_that_a_shell_computes(terms: str, size: int) -> None:
    text = f"TP=4\nvllm serve m --tensor-parallel-size {terms} --max-model-len 4096"
    launch = registry.read(text, "a.sh").launch
    assert isinstance(launch, ServingLaunch)
    assert launch.sizes["tensor"] == size


def test_a_parser_of_arguments_is_no_option() -> None:
    """Its labels are flags of the script, and `printf -v` sets a variable."""
    text = """while [[ $# -gt 0 ]]; do case "$1" in
  --tp) TP="$2"; shift 2;; --model) MODEL="$2"; shift 2;; *) shift;; esac; done
: ${TP:=4}
printf -v LEN "%d" 4096
python -m vllm.entrypoints.openai.api_server --model=${MODEL:-m} -tp=$TP --max-model-len=$LEN"""
    found = registry.read(text, "serve.sh")
    assert found.framework.name == "vllm"
    assert isinstance(found.launch, ServingLaunch)
    assert (found.launch.sizes["tensor"], found.launch.context) == (4, 4096)
