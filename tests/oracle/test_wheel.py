"""The wheel installs into a clean environment, and works without the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle


def call(*words: str | Path, cwd: Path) -> str:
    """The output of a command that has to succeed, without this environment's paths."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    call(sys.executable, *build, "--wheel-dir", folder, root, cwd=folder)
    return next(folder.glob("shardwise-*.whl"))


@pytest.fixture(scope="module")
def installed(root: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a new environment with the wheel and the core's locked dependencies."""
    folder = tmp_path_factory.mktemp("clean")
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    commands = folder / "venv" / "bin"
    pip = [commands / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    call(*pip, "--require-hashes", "-r", root / "requirements" / "core.txt", cwd=folder)
    call(*pip, "--no-deps", wheel, cwd=folder)
    return commands


def test_the_wheel_has_the_package_and_its_data_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"shardwise"}
    for needed in ("ui/static/page.js", "ui/static/index.html", "book/cases.json", "py.typed"):
        assert f"shardwise/{needed}" in names


def test_it_plans_reports_and_solves_without_jax(installed: Path, tmp_path: Path) -> None:
    plan = ["plan", "llama3-70b", "v5p:4x4x4", "--train", "--batch", "64x4096", "-o", "plan.json"]
    assert "64 chips" in call(installed / "shardwise", *plan, cwd=tmp_path)
    call(installed / "shardwise", "report", "plan.json", "-o", "report.html", cwd=tmp_path)
    assert "<script" in (tmp_path / "report.html").read_text(encoding="utf-8")
    solved = json.loads(call(installed / "shardwise", "book", "--all", "--json", cwd=tmp_path))
    assert solved["failed"] == []
    program = "import sys, shardwise as sw; sw.hardware('v5e:4x4'); print('jax' in sys.modules)"
    assert call(installed / "python", "-c", program, cwd=tmp_path).strip() == "False"


@pytest.mark.parametrize(
    ("words", "extra"),
    [(("ui",), "shardwise[ui]"), (("check", "plan.json"), "shardwise[check]")],
)
def test_a_missing_extra_is_named(
    installed: Path, tmp_path: Path, words: tuple[str, ...], extra: str
) -> None:
    plan = ["plan", "llama3.2-1b", "v5e:2x2", "--train", "--batch", "8x512", "-o", "plan.json"]
    call(installed / "shardwise", *plan, cwd=tmp_path)
    done = subprocess.run(
        [installed / "shardwise", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert extra in done.stderr
