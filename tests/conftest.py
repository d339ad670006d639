"""What every test stands on: a plain 80-column terminal, and property tests that repeat."""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
from hypothesis import settings

from tests.oracle import xla
from tests.xla import LEAST_COMPILE_TIME

# Set before any module under test looks: the same text on every machine, in every terminal.
os.environ.update(NO_COLOR="1", COLUMNS="80", TERM="dumb", LC_ALL="C.UTF-8", PYTHONUTF8="1")
os.environ.pop("FORCE_COLOR", None)
# Processes that tests start read the bytecode of those before them: it is a third of their start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {LEAST_COMPILE_TIME}".strip()

# Compiled programs stay for all processes of a run, and are not the user's.
if "PYTEST_XDIST_WORKER" not in os.environ:
    CACHE = tempfile.TemporaryDirectory(prefix="shardwise-tests-")
    os.environ["SHARDWISE_CACHE"] = CACHE.name

# The same examples on every run, no database on disk and no clock: a failure is a failure again.
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, max_examples=50
)
settings.load_profile("repeatable")

ROOT = Path(__file__).resolve().parent.parent

COMPILING = tuple(f"tests/{name}/" for name in ("docs", "oracle", "unit/train", "unit/runtime"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


def pytest_sessionstart(session: pytest.Session) -> None:
    """JAX has eight devices for the oracle, whichever of its tests comes first."""
    if session.config.getoption("markexpr") == "oracle":
        xla.load().devices()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part 2/3` runs the second of three parts."""
    parser.addoption(
        "--part", type=_part, help="K/N: every Nth of the tests' rows, from the Kth on"
    )


def _part(text: str) -> tuple[int, int]:
    """The numbers of `2/3`."""
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ArgumentTypeError(f"{text} is no part; write K/N, such as 2/3")
    return int(number), int(count)


@pytest.hookimpl(trylast=True)  # after marks have selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that compile programs come first: at the end, short ones share out what is left."""
    items.sort(key=lambda item: not item.nodeid.startswith(COMPILING))
    if part := config.getoption("part"):
        number, count = part
        units = {*sorted({_unit(item) for item in items})[number - 1 :: count]}
        config.hook.pytest_deselected(items=[item for item in items if _unit(item) not in units])
        items[:] = [item for item in items if _unit(item) in units]


def _unit(item: pytest.Item) -> str:
    """What a part has whole: a row of a table of tests, or the other tests of a file."""
    return item.nodeid if hasattr(item, "callspec") else str(item.path)
