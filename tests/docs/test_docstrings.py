"""The examples in docstrings are run, each module's in its own test."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.conftest import ROOT


def modules_with_examples() -> list[str]:
    src = ROOT / "src"
    paths = (path for path in sorted(src.rglob("*.py")) if ">>> " in path.read_text())
    names = (".".join(path.relative_to(src).with_suffix("").parts) for path in paths)
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstrings_show_what_happens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0, capsys.readouterr().out
    assert tried > 0
