"""What ARCHITECTURE.md promises: a schedule is one file, a remat policy one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arch import fresh

VOCABULARY = "vocabulary.py"
PLAN = "plan llama3-8b h100:16 --train --batch 64x4096"
EAGER = """
from shardwise.strategy.schedules.dualpipe import DualPipe

class Eager(DualPipe):
    name = "eager"
    source = "this test"
    published = "2026-11"

    def bubble(self, stages, microbatches, chunks, times):
        return 0.0 * super().bubble(stages, microbatches, chunks, times)

SCHEDULE = Eager()
"""  # it never waits: no search overlooks it
LIGHT = '    "light": ("norms", "gate"),\n    "full": (LAYER,),\n'


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one file and one line more."""
    src = fresh.copy_of_package(tmp_path_factory.mktemp("package"))
    package = src / "shardwise"
    (package / "strategy" / "schedules" / "eager.py").write_text(EAGER)
    words = (package / VOCABULARY).read_text()
    assert '    "full": (LAYER,),\n' in words
    (package / VOCABULARY).write_text(words.replace('    "full": (LAYER,),\n', LIGHT))
    return src


def run(src: Path, line: str, code: int = 0) -> str:
    found, text = fresh.run("-m", "shardwise", *line.split(), src=src, cwd=src)
    assert found == code, text
    return text


def test_a_search_tries_the_schedule_and_explains_its_plan(src: Path) -> None:
    plan = src / "plan.json"
    limits = "--max tensor=1,context=1,fsdp=1 --fix pipe=4"
    text = run(src, f"{PLAN} {limits} --any-layout -o {plan}")
    assert "eager" in text
    told = run(src, f"explain {plan} -v")
    assert "eager" in told


@pytest.mark.parametrize(
    "words",
    [
        "--fix pipe=2,schedule=eager,remat=light",
        "--mesh fsdp=8,pipe=2,schedule=eager --remat light",
    ],
)
def test_both_are_taken_where_they_are_given(src: Path, words: str) -> None:
    text = run(src, f"{PLAN} {words} --json")
    assert '"schedule": "eager"' in text
    assert '"remat": "light"' in text


def test_a_layout_has_both(src: Path) -> None:
    lines = (
        "import shardwise as sw",
        "from shardwise.strategy.layout import Layout",
        "from shardwise.vocabulary import REMAT_POLICIES",
        "layout = Layout(mesh=sw.Mesh(fsdp=8, pipe=2), zero=3, schedule='eager', n_microbatches=8,"
        " recomputed=REMAT_POLICIES['light'])",
        "job = sw.Train(batch=64, seq=4096, remat='light')",
        "plan = sw.evaluate(sw.model('llama3-8b'), sw.hardware('h100:16'), job, layout)",
        "print(plan.strategy.schedule, plan.strategy.remat)",
    )
    code, text = fresh.run("-c", "\n".join(lines), src=src)
    assert (code, text) == (0, "eager light\n")


def test_help_and_errors_name_both(src: Path) -> None:
    told = run(src, "sweep --help")
    assert "eager" in told
    assert "light" in told
    assert "eager" in run(src, f"{PLAN} --fix schedule=eage", code=2)
    assert "light" in run(src, f"{PLAN} --remat ligh", code=2)
