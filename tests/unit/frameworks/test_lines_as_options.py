"""Options in lines of a script: of a variable, of a word, of a file that it writes and reads."""

from __future__ import annotations

import pytest

from shardwise.frameworks import registry

OPTIONS = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size $PP"
COMMAND = "torchrun pretrain_gpt.py --bf16 --overlap-grad-reduce --seq-length 4096"


@pytest.mark.parametrize(
    "script",
    [
        f"read -r -d '' PAR <<EOF\n{OPTIONS}\nEOF\n{COMMAND} $PAR",
        f"read -d '' -r PAR <<-EOF || true\n{OPTIONS}\n  EOF\n{COMMAND} $PAR",
        f"PAR=$(cat <<EOF\n{OPTIONS}\nEOF\n)\n{COMMAND} $PAR",
        f'export PAR="$(cat <<EOF\n{OPTIONS}\nEOF\n)"\n{COMMAND} $PAR',
        f"cat > par.args <<EOF\n{OPTIONS}\nEOF\n{COMMAND} $(cat par.args)",
        f"{COMMAND} $(cat <<EOF\n{OPTIONS}\nEOF\n)",
        f'CMD=$(cat <<EOF\n{COMMAND} {OPTIONS}\nEOF\n)\nsrun -N 4 bash -c "$CMD"',
        f"read -r -d '' CMD <<'EOF'\n{COMMAND} \\\n  {OPTIONS}\nEOF\nexport PP\nbash -c \"$CMD\"",
    ],
)
def test_they_are_read(script: str) -> None:
    launch = registry.read(f"PP=2\n{script}\n", "a.sh").launch
    assert {role: launch.sizes[role] for role in ("tensor", "pipe")} == {"tensor": 4, "pipe": 2}
    assert launch.notes == ("tensor 4 without sequence parallelism: each rank has the activations "
                            "of all tokens between blocks. The plan has 1/4 of them, less memory "
                            "than the run needs.",)  # fmt: skip


def test_a_file_beside_the_script_is_read_too() -> None:
    options = OPTIONS.replace("$PP", "2")
    beside = {"./par.args": options}.get
    launch = registry.read(f"{COMMAND} $(cat ./par.args)", "a.sh", beside=beside).launch
    assert launch.sizes["pipe"] == 2


@pytest.mark.parametrize(
    ("word", "n_notes"), [("$(jq -r .par conf.json)", 1), ("--master-addr $(hostname -i)", 0)]
)
def test_what_only_a_shell_knows_is_named(word: str, n_notes: int) -> None:
    notes = registry.read(f"PAR='{word}'\n{COMMAND} {word}", "a.sh").launch.notes
    assert sum("if options are in what a shell puts here" in note for note in notes) == n_notes
