"""The server against its OpenAPI document, with requests that schemathesis makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from shardwise.serve.http.options import ServerOptions
from tests.unit.serve.http.serving import Served, serving

pytestmark = pytest.mark.oracle

EXAMPLES = 40  # of each operation: twenty seconds together
STREAMS = (
    {"prompt": "hello", "stream": True},
    {"messages": [{"role": "user", "content": "hello"}], "stream": True},
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(ServerOptions(port=0, most_waiting=512)) as running:
        yield running


def test_answers_are_as_documented(served: Served) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    held = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.negative_data_rejection,
    ]
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 6

    def check(operation: Any, mode: Any) -> None:
        @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=HealthCheck)
        @given(operation.as_strategy(generation_mode=mode))
        def examine(case: Any) -> None:
            case.call_and_validate(checks=held)

        examine()

    for operation in operations:
        check(operation, GenerationMode.POSITIVE)
        if operation.method == "post":
            check(operation, GenerationMode.NEGATIVE)
    for operation, request in zip(operations, STREAMS, strict=False):
        operation.Case(body=request, media_type="application/json").call_and_validate(checks=held)
    assert served.engine.idle()
    metrics = httpx.get(f"{served.url}/metrics").text
    for path in ("/v1/completions", "/v1/chat/completions"):
        for status in (200, 400):  # of both, many
            line = f'handler="{path}",method="POST",status="{status}"}}'
            assert float(metrics.partition(line)[2].split()[0]) >= 5


def test_the_document_names_what_is_asked_for(served: Served) -> None:
    document = httpx.get(f"{served.url}/openapi.json").json()
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert "user" in fields
