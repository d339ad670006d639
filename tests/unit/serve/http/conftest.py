"""One server for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from tests.unit.serve.http.serving import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def usual(request: pytest.FixtureRequest) -> Iterator[None]:
    """The engine replies as usual, and after each test nothing runs."""
    if "served" not in request.fixturenames:
        yield
        return
    served = request.getfixturevalue("served")
    served.engine.step_seconds = 0.0
    served.engine.fails = False
    served.replies.text = "hello world"
    served.replies.endless = False
    yield
    assert served.engine.idle(), "generations were left running"


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=20) as made:
        yield made


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=20) as made:
        yield made
