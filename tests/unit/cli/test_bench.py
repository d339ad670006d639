"""`shardwise bench` against a small server whose delays are known."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.cli.verbs.bench import parse_rates, parse_url
from shardwise.errors import BadInput
from tests.golden.terminal import run
from tests.unit.serve.load.fake_server import FakeServer, serving

LENGTHS = ("--prompt", "12", "--output", "4")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(FakeServer(first_s=0.02, token_s=0.005)) as running:
        yield running


def test_a_sweep(server: FakeServer) -> None:
    options = ("--rate", "40-160*2", "--requests", "8", "--warmup", "2", "--ttft", "10s")
    said = run("bench", server.url, *LENGTHS, *options)
    assert (said.code, said.err) == (0, "")
    assert server.lengths == [(12, 4)] * (2 + 3 * 8)
    prompts = [tuple(entry["prompt"]) for entry in server.log]
    assert len(set(prompts)) == len(prompts), "a server could have cached them"
    assert max(map(len, said.out.splitlines())) <= 80
    for text in ("40/s", "80/s", "160/s", "Pareto front", "fake at http", "within", "100 %"):
        assert text in said.out


def test_the_document(server: FakeServer) -> None:
    options = ("--rate", "50/s", "--requests", "10", "--seed", "7", "--traffic", "constant")
    said = run("bench", server.url, *LENGTHS, *options, "--json")
    document = json.loads(said.out)
    (row,) = document["rows"]
    assert (document["model"], document["seed"], document["arrivals"]) == ("fake", 7, "constant")
    assert (row["requests"], row["output_tokens"], row["prompt_tokens"]) == (10, 40, 120)
    # What the server waits is a lower bound, however slow the machine is.
    assert row["ttft_s"]["p50"] >= 0.02
    assert row["latency_s"]["p50"] >= 0.02 + 3 * 0.005
    assert row["duration_s"] >= 10 / 50 + 0.035
    assert row["errors"] == {}


def test_a_slow_answer_delays_no_other_request(server: FakeServer) -> None:
    server.slow = 0
    options = ("--rate", "50/s", "--requests", "6", "--warmup", "0", "--json")
    (row,) = json.loads(run("bench", server.url, *LENGTHS, *options).out)["rows"]
    arrivals = [entry["arrival_s"] for entry in server.log]
    assert [entry["index"] for entry in server.log] == list(range(6))
    assert arrivals[-1] - arrivals[0] < 1.0, "the first answer takes longer than that"
    assert row["latency_s"]["p99"] > 0.9
    assert row["ttft_s"]["p50"] < 0.9


def test_users_of_a_chat(server: FakeServer) -> None:
    options = ("--concurrency", "2,4", "--requests", "8", "--chat", "--warmup", "0", "-o", "jsonl")
    said = run("bench", server.url, *LENGTHS, *options)
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [row["users"] for row in rows] == [2, 4]
    assert {entry["path"] for entry in server.log} == {"/v1/chat/completions"}
    assert len(server.log) == 16


def test_a_recording_and_a_text(server: FakeServer, tmp_path: Path) -> None:
    recording = tmp_path / "day.csv"
    recording.write_text("arrival,prompt,output\n0,5,2\n0.02,6,3\n0.05,7,4\n")
    text = tmp_path / "book.txt"
    text.write_text("word " * 100)
    options = ("--traffic", str(recording), "--text", str(text), "--warmup", "0")
    said = run("bench", server.url, *options)
    assert said.code == 0, said.err
    counted = server.log[:24]  # pieces whose tokens are counted first
    assert {entry["max_tokens"] for entry in counted} == {1}
    assert [entry["max_tokens"] for entry in server.log[24:]] == [2, 3, 4]
    lengths = [length for length, _ in server.lengths[24:]]
    assert lengths == pytest.approx([5, 6, 7], abs=1.5)  # words, which are cut at both ends
    assert "recorded" in said.out


def test_a_recording_that_cannot_be_read_is_the_only_problem(tmp_path: Path) -> None:
    recording = tmp_path / "day.csv"
    recording.write_text("a,b\n1,2\n")
    said = run("bench", "http://127.0.0.1:9", "--traffic", str(recording))
    assert said.code == 2
    assert "Columns: arrival, prompt," in said.err
    assert "no load" not in said.err
    assert "no length" not in said.err


def test_beside_a_plan(server: FakeServer, tmp_path: Path) -> None:
    plan = sw.plan(sw.model("llama3.2-1b"), sw.hardware("v5e:1x1"), sw.Serve(prompt=12, output=4))
    file = tmp_path / "plan.json"
    plan.save(file)
    options = ("--rate", "50-100*2", "--requests", "5", "--plan", str(file))
    said = run("bench", server.url, *LENGTHS, *options)
    assert (said.code, said.err) == (0, "")
    assert "measured over simulated" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    detailed = run("bench", server.url, *LENGTHS, *options, "-v")
    assert detailed.out.count("measured / simulated") == 2 * 3
    assert max(map(len, detailed.out.splitlines())) <= 80
    loads, predicted = run("bench", server.url, *LENGTHS, *options, "-o", "md").out.split("\n\n")
    assert loads.startswith("| load | TTFT p50 |")
    assert predicted.startswith("| plan | TTFT p50 | × | TPOT p50 | × | tok/s | × | means TTFT |")
    assert len(predicted.splitlines()) == len(loads.splitlines()) == 2 + 2


def test_a_gate(server: FakeServer) -> None:
    options = ("--rate", "50/s", "--requests", "4")
    said = run("bench", server.url, *LENGTHS, *options, "--max", "ttft=10ms,latency=10s")
    assert said.code == 4
    assert "ttft is" in said.out
    assert "latency is" not in said.out
    assert run("bench", server.url, *LENGTHS, *options, "--max", "ttft=10s").code == 0


def test_errors_are_counted(server: FakeServer) -> None:
    server.fails = {1: 503, 2: 503}
    options = ("--rate", "50/s", "--requests", "4", "--warmup", "0")
    said = run("bench", server.url, *LENGTHS, *options)
    assert said.code == 0
    assert "2 × HTTP 503 (overloaded)" in said.out
    server.fails = dict.fromkeys(range(100), 503)
    said = run("bench", server.url, *LENGTHS, *options)
    assert (said.code, said.out) == (5, "")
    assert "4 × HTTP 503 (overloaded)" in said.err
    said = run("bench", server.url, *LENGTHS, "--rate", "50/s")
    assert said.code == 2
    assert "no request of the warm-up: HTTP 503, overloaded" in said.err.replace("\n  ", " ")


def test_no_server() -> None:
    said = run("bench", "http://127.0.0.1:1", *LENGTHS, "--rate", "1")
    assert said.code == 2
    assert said.err.startswith("✗ no server answers at http://127.0.0.1:1: GET http://127.0.0.1:1/")


def test_httpx_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    for module in ("client", "connections"):
        monkeypatch.delitem(sys.modules, f"shardwise.serve.load.{module}", raising=False)
    said = run("bench", "http://127.0.0.1:1", *LENGTHS, "--rate", "1")
    assert said.code == 2
    assert "pip install 'shardwise[serve]'" in said.err.replace("\n  ", " ")


def test_a_key(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = "secret"
    command = ("bench", server.url, *LENGTHS, "--rate", "50", "--requests", "2")
    said = run(*command)
    assert said.code == 2
    assert "401: Incorrect API key" in said.err.replace("\n  ", " ")
    file = tmp_path / "key"
    file.write_text("secret\n")
    assert run(*command, "--key-file", str(file)).code == 0
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert run(*command).code == 0


def test_a_server_that_lists_no_models(server: FakeServer) -> None:
    server.lists_models = False
    command = ("bench", server.url, *LENGTHS, "--rate", "50", "--requests", "2")
    said = run(*command)
    assert said.code == 2
    assert "404: Not Found" in said.err
    assert "--model NAME" in said.err
    assert run(*command, "--model", "mine").code == 0
    assert server.log[-1]["model"] == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no load is given: --rate 4/s"),
        (("--rate", "1", "--concurrency", "2"), "Use one"),
        (("--rate", "1", "--requests", "3", "--duration", "3s"), "both say when to stop"),
        (("--rate", "4/x"), "unknown unit"),
        (("--rate", "0"), "never arrive"),
        (("--rate", "1", "--max", "ttft"), "is not NAME=TIME"),
        (("--rate", "1", "--max", "speed=3s"), "unknown name of --max"),
        (("--rate", "1", "--plan", "none.json"), "none.json"),
        (("--rate", "1", "--key-file", "none.key"), "none.key"),
        (("--rate", "1e9"), "more than one client can send"),
    ],
)
def test_what_is_refused_before_anything_is_sent(options: tuple[str, ...], message: str) -> None:
    said = run("bench", "http://127.0.0.1:1", *LENGTHS, *options)
    assert said.code == 2
    assert message in said.err.replace("\n  ", " ")
    assert "no server" not in said.err


def test_lengths_are_needed() -> None:
    assert "no length of requests is given" in run("bench", "http://127.0.0.1:1").err


def test_urls() -> None:
    assert parse_url("http://localhost:8000/v1/") == "http://localhost:8000"
    assert parse_url("https://host/api/v1") == "https://host/api"
    for text in ("localhost:8000", "http://", "http://a:x", "ftp://a", "http://a b", "http://é"):
        with pytest.raises(BadInput, match="is not the URL of a server"):
            parse_url(text)


def test_rates() -> None:
    assert parse_rates("0.5,1,2") == (0.5, 1.0, 2.0)
    assert parse_rates("1-16*2/s") == (1.0, 2.0, 4.0, 8.0, 16.0)
    assert parse_rates("600/min") == (10.0,)
