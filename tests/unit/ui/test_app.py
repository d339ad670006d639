"""The page's server: its files, its questions, and a hundred requests that it refuses."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from shardwise.ui.app import HEADERS, MOST_BYTES, App, Opened
from shardwise.ui.question import Inputs, Question
from tests.unit.ui.questions import SERVING, TRAINING

BASE = "http://127.0.0.1:8710"
JSON = {"content-type": "application/json"}
QUESTION = {"model": "llama3.2-1b", "hardware": "v5e:2x2", "batch": 8, "seq": 512}


def send(app: App, method: str, path: str, **settings: Any) -> httpx.Response:
    """A request to the application itself, without a socket."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            return await client.request(method, path, **settings)

    return asyncio.run(ask())


def problems(response: httpx.Response, status: int) -> str:
    """The text of a refusal, which is JSON and no traceback."""
    assert response.status_code == status, response.text
    document = response.json()
    assert set(document) == {"error"}
    text = " ".join(document["error"]["problems"])
    assert text
    assert "Traceback" not in text
    return text


@pytest.fixture(scope="module")
def app() -> App:
    return App(Opened(question=TRAINING))


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css"])
def test_files_of_the_page(app: App, path: str) -> None:
    response = send(app, "GET", path)
    assert response.status_code == 200
    assert len(response.content) > 100
    assert {name: response.headers[name] for name in HEADERS} == HEADERS


def test_the_start_has_the_first_frame_and_names(app: App) -> None:
    document = send(app, "GET", "/api/start").json()
    assert document["frame"]["question"]["model"] == TRAINING.model
    assert "llama3-70b" in document["names"]["models"]
    assert not document["run"]


def test_a_command_line_without_an_answer_opens_the_page_with_its_question() -> None:
    large = msgspec.structs.replace(TRAINING, model="llama3.1-405b")
    document = send(App(Opened(question=large)), "GET", "/api/start").json()
    assert "fit" in document["problems"][0]
    assert document["frame"] is None
    assert msgspec.convert(document["question"], Question) == large


def test_a_curve_ends_when_its_client_leaves(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    question = send(app, "POST", "/api/frame", json=QUESTION).json()["question"]
    body = json.dumps({"question": question, "slider": "seq"}).encode()
    is_asked, is_alone = threading.Event(), threading.Event()
    points = []

    def point(inputs: Inputs) -> dict[str, Any]:
        points.append(inputs)
        is_asked.set()
        is_alone.wait(0.5)
        return {}

    async def ask_and_leave() -> None:
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            if message := next(messages, None):
                return message
            await asyncio.to_thread(is_asked.wait)
            asyncio.get_running_loop().call_later(0.1, is_alone.set)
            return {"type": "http.disconnect"}

        async def ignore(message: Any) -> None: ...

        headers = [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")]
        scope = {"type": "http", "method": "POST", "path": "/api/curve", "query_string": b""}
        await app({**scope, "headers": headers}, receive, ignore)

    monkeypatch.setattr("shardwise.ui.sliders._numbers", point)
    asyncio.run(ask_and_leave())
    assert len(points) == 1


def test_a_question_is_answered(app: App) -> None:
    document = send(app, "POST", "/api/frame", json=QUESTION).json()
    assert document["schema"] == "shardwise.frame/1"
    curve = {"question": document["question"], "slider": "seq"}
    points = send(app, "POST", "/api/curve", json=curve).json()["points"]
    assert any(point["stop"] == 512 for point in points)


def test_what_has_no_plan_is_unprocessable(app: App) -> None:
    large = {**QUESTION, "model": "llama3.1-405b"}
    assert "fit" in problems(send(app, "POST", "/api/frame", json=large), 422)


def test_another_site_is_refused(app: App) -> None:
    headers = {**JSON, "host": "evil.example"}
    assert "own names" in problems(send(app, "GET", "/api/start", headers=headers), 421)
    text = {"content-type": "text/plain"}
    body = json.dumps(QUESTION)
    assert "application/json" in problems(
        send(app, "POST", "/api/frame", content=body, headers=text), 415
    )


def test_a_long_question_is_refused(app: App) -> None:
    body = b" " * (MOST_BYTES + 1)
    assert "bytes" in problems(send(app, "POST", "/api/frame", content=body, headers=JSON), 413)


def malformed() -> list[bytes]:
    """A hundred bodies that are no question: broken JSON, wrong fields, types and sizes."""
    chance = random.Random(7)
    values = [None, [], {}, "", "x" * 300, -1, 0, 1.5, 1e300, True, {"a": [1]}, "\u202e", "../x"]
    fields = [*QUESTION, "kind", "dtype", "strategy", "words", "factors", "tokens", "nothing"]
    pairs = [*itertools.product(fields, values)]
    chance.shuffle(pairs)
    text = json.dumps(QUESTION).encode()
    broken = [text[:n] for n in range(0, len(text) - 1, 9)] + [b"\xff\xfe", b"[" * 9000, b"nan"]
    return [*broken, *(json.dumps({**QUESTION, name: value}).encode() for name, value in pairs)]


def test_a_hundred_malformed_questions(app: App) -> None:
    refused = 0
    for body in malformed():
        response = send(app, "POST", "/api/frame", content=body, headers=JSON)
        if response.status_code != 200:  # a few of the values are what the field may have
            assert problems(response, response.status_code)
            assert response.status_code in (400, 422), body
            refused += 1
    assert refused >= 100
    again = send(app, "POST", "/api/frame", json=QUESTION)
    assert again.json()["question"]["batch"] == QUESTION["batch"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/frame", 405),
        ("DELETE", "/", 405),
        ("GET", "/page.js/../../app.py", 404),
        ("GET", "/..%2f..%2fetc/passwd", 404),
        ("GET", "/static/page.js", 404),
        ("GET", "/api/run", 404),
        ("GET", "/api/run?from=-1", 404),
    ],
)
def test_other_addresses(app: App, method: str, path: str, status: int) -> None:
    problems(send(app, method, path), status)


def test_a_run_is_read_from_where_the_page_stands(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "loss": 2.0}\n{"step": 2')
    app = App(Opened(question=SERVING, run=metrics))
    first = send(app, "GET", "/api/run").json()
    assert [record["step"] for record in first["records"]] == [1]
    with metrics.open("a") as file:
        file.write(', "loss": 1.5}\n')
    second = send(app, "GET", f"/api/run?from={first['next']}").json()
    assert second["records"] == [{"step": 2, "loss": 1.5}]
    problems(send(app, "GET", "/api/run?from=x"), 400)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"batch": 0}, "batch must be a whole number >= 1."),
        ({"batch": "lots"}, "batch must be a whole number."),
        ({"rate": -1}, "rate must be a number > 0.0."),
        ({"peak": "yes"}, "peak must be 1 or 0."),
        ({"model": ""}, "model must be text of length >= 1."),
        (
            {"nothing": 1},
            "a question has no nothing. It has " + ", ".join(Question.__struct_fields__) + ".",
        ),
    ],
)
def test_a_refusal_names_the_field(app: App, value: dict[str, object], reason: str) -> None:
    response = send(app, "POST", "/api/frame", json={**QUESTION, **value})
    assert problems(response, 400) == reason
