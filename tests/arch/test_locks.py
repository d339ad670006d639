"""The locks pin and hash what is installed and never say where it is fetched from."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.unit.check.compilers import needs

HASHED = (
    "core.txt", "dev.txt", "run.txt", "gpu.txt", "oracle.txt", "models.txt", "frameworks.txt",
    "parsers.txt",
)  # fmt: skip
ADDRESS = re.compile(r"://|\bfile:[./]|index[-_]url|find[-_]links|trusted[-_]host", re.IGNORECASE)
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)")


def requirements(text: str) -> list[str]:
    """One string for each requirement, its continuation lines joined."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [line for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines() if line.strip()]


def pins(path: Path) -> dict[str, str]:
    found = (PIN.match(line) for line in requirements(path.read_text()))
    return {match[1].lower(): match[2] for match in found if match}


def config_files(root: Path) -> list[Path]:
    fixed = [root / "pyproject.toml", root / ".ci" / "run"]
    return [*fixed, *sorted((root / "requirements").iterdir())]


def test_no_address(root: Path) -> None:
    found = [
        f"{path.relative_to(root)}: {line}"
        for path in config_files(root)
        for line in path.read_text().splitlines()
        if ADDRESS.search(line)
    ]
    assert not found
    # The Makefile names the options that keep addresses out of a lock, and nothing after them.
    assert not re.search(r"://|file:|(?:index-url|find-links)[ =]\S*/", read_makefile(root))


def read_makefile(root: Path) -> str:
    return (root / "Makefile").read_text()


@pytest.mark.parametrize("line", ["--extra-index-url x", "a @ file:///b", "# from https://x/y"])
def test_an_address_is_seen(line: str) -> None:
    assert ADDRESS.search(line)


@pytest.mark.parametrize("name", HASHED)
def test_every_requirement_is_pinned_and_hashed(root: Path, name: str) -> None:
    found = requirements((root / "requirements" / name).read_text())
    assert found
    assert [line for line in found if not PIN.match(line) or "--hash=sha256:" not in line] == []


def test_torch_is_pinned(root: Path) -> None:
    assert requirements((root / "requirements" / "torch.txt").read_text()) == ["torch==2.13.0"]


def test_locks_agree(root: Path) -> None:
    core, dev, *oracles = (pins(root / "requirements" / name) for name in HASHED)
    assert core.items() <= dev.items()
    for oracle in oracles:
        assert not {k: (v, dev[k]) for k, v in oracle.items() if dev.get(k, v) != v}


def test_locks_hold_what_the_project_asks_for(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    name_of = re.compile(r"[A-Za-z0-9._-]+")
    wanted = {
        "core.txt": project["dependencies"],
        "dev.txt": project["optional-dependencies"]["dev"],
    }
    for lock, asked in wanted.items():
        names = {match[0].lower() for match in map(name_of.match, asked) if match}
        assert names <= pins(root / "requirements" / lock).keys()


@needs("cpu")
def test_the_compiler_for_tpus_is_that_of_jax(root: Path) -> None:
    """Another version of libtpu rejects programs of this JAX, so only JAX's own bound holds."""
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    of_jax = [name.replace("jax", "jax[tpu]") for name in extras["run"] if name.startswith("jax")]
    assert set(of_jax) <= set(extras["check"])
    assert not any("libtpu" in requirement for extra in extras.values() for requirement in extra)
    bounds = [line for line in requires("jax") or () if line.startswith("libtpu")]
    bound = re.fullmatch(r'libtpu==(\S+); extra == "tpu"', *bounds)
    assert bound
    locked = pins(root / "requirements" / "run.txt")
    assert fnmatch(locked["libtpu"], bound[1])
