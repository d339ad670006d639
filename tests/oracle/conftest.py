"""A browser, the page's server and a tab, for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser, Page, browser
from tests.page_server import server


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
def page(chromium: Browser) -> Iterator[Page]:
    """A tab of its own, as wide as a small screen."""
    tab = chromium.page()
    tab.size(1280, 900)
    yield tab
    tab.close()
