"""A browser, the page's server and a tab, for the tests of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, Page, browser
from tests.page_server import server

SCREENSHOTS = Path("build/screenshots")  # the last view of each test of the page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the page as `shardwise ui` opens it."""
    with server() as url:
        yield url


@pytest.fixture
def page(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab of its own, as wide as a small screen; its last view is kept as a picture."""
    tab = chromium.page()
    tab.size(1280, 900)
    yield tab
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    tab.screenshot(SCREENSHOTS / f"{name}.png")
    tab.close()
