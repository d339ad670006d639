"""Which compiler is taken where some are missing, in words that help."""

from __future__ import annotations

import pytest

from shardwise.check.compiling import environment
from shardwise.check.compiling.environment import choose_target, installed_compilers
from shardwise.errors import MissingExtra
from shardwise.hardware import parse_system
from tests.arch.fresh import run


def only(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda package: package in packages)


def test_the_own_compiler_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "jax", "jaxlib", "libtpu", "jax_cuda12_plugin")
    assert installed_compilers() == {"cpu", "tpu", "gpu"}
    assert choose_target(parse_system("v5e:2x2")).platform == "tpu"
    assert choose_target(parse_system("h100:8")).platform == "gpu"


@pytest.mark.parametrize(
    ("name", "line"), [("v5e:2x2", "'shardwise[check]'"), ("h100:8", "'shardwise[check-gpu]'")]
)
def test_the_cpu_stands_in_and_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    only(monkeypatch, "jax", "jaxlib")
    target = choose_target(parse_system(name))
    assert target.platform == "cpu"
    assert target.n_devices == parse_system(name).n_chips
    assert line in target.note
    assert "Memory and time are not checked" in target.note
    assert not target.proves_memory


def test_nothing_goes_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "libtpu")
    assert installed_compilers() == frozenset()
    with pytest.raises(MissingExtra, match=r"pip install 'shardwise\[check\]'"):
        choose_target(parse_system("v5e:2x2"))


MODULES = (
    "compiling.environment",
    "compiling.process",
    "compiling.targets",
    "compiling.result",
    "compiling.job",
    "compiling.cache",
    "user.entry_point",
    "user.api",
)


def test_what_the_command_line_reaches_imports_no_jax() -> None:
    names = ", ".join(f"shardwise.check.{module}" for module in MODULES)
    code, text = run("-c", f"import {names}, sys; sys.exit('jax' in sys.modules)")
    assert code == 0, text
