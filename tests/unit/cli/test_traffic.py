"""`plan --serve --rate --traffic`: screens, JSON, and every mistake told without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.terminal import run

CHAT = ("--serve", "--prompt", "2048", "--output", "256")
BOUNDS = ("--ttft", "500ms", "--tpot", "30ms")


@pytest.mark.parametrize(
    "words",
    [
        ("h100:8", *CHAT, *BOUNDS, "--rate", "20/s"),
        ("h100:8", *CHAT, *BOUNDS, "--rate", "20/s", "--traffic", "bursty:3", "--at", "p90"),
        pytest.param(("h100:8", *CHAT, *BOUNDS, "--capacity"), marks=pytest.mark.oracle),
        ("h100:8", *CHAT, "--rate", "5/s", "--traffic", "constant", "--disaggregate"),
        ("h100:8", *CHAT, *BOUNDS, "--users", "64"),
        ("h100", *CHAT, "--tpot", "30ms", "--users", "300", "--disaggregate"),
    ],
)
def test_an_answer_is_a_screen(words: tuple[str, ...]) -> None:
    said = run("plan", "llama3-8b", *words)
    assert said.code == 0, said.err
    lines = said.out.rstrip("\n").split("\n")
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert "simulated requests" in " ".join(said.out.split())


def test_a_largest_rate_needs_a_bound_on_the_first_token() -> None:
    said = run("plan", "llama3-8b", "h100:8", *CHAT, "--tpot", "30ms", "--capacity")
    assert said.code == 2
    assert "--ttft" in said.err


def test_the_largest_rate_is_the_rate_of_the_answer() -> None:
    """Throughput and price are those of the rate that requests were simulated at."""
    said = run("plan", "llama3-8b", "h100:8", *CHAT, *BOUNDS, "--capacity", "--json")
    estimate = json.loads(said.out)["estimate"]
    rate = estimate["traffic"]["capacity"]["rate"]
    assert estimate["requests_per_s"] == estimate["traffic"]["rate"] == rate
    assert estimate["tokens_per_s"] == pytest.approx(256 * rate, rel=1e-12)


def test_json_has_all_numbers() -> None:
    said = run("plan", "llama3-8b", "h100:8", *CHAT, *BOUNDS, "--rate", "20/s", "--json")
    told = json.loads(said.out)["estimate"]["traffic"]
    assert {"ttft_s", "tpot_s", "queue_s", "latency_s"} <= set(told)
    assert {"p50", "p90", "p99", "mean"} == set(told["ttft_s"])
    assert told["kind"] == "poisson"
    assert told["at"] == 0.99
    assert told["within"] >= 0.99
    assert {"utilisation", "goodput", "preemptions", "mean_field", "tried"} <= set(told)


def test_users_are_on_the_screen_and_in_json(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    words = ("plan", "llama3-8b", "h100:8", *CHAT, *BOUNDS, "--users", "64", "-o", path)
    screen = " ".join(run(*words).out.split())
    plan = json.loads(Path(path).read_text())
    told = plan["estimate"]["traffic"]
    assert (told["kind"], told["users"], plan["workload"]["users"]) == ("closed", 64, 64)
    assert plan["workload"]["rate"] is None
    assert plan["estimate"]["requests_per_s"] == told["rate"]
    assert f"64 users in a closed loop: {told['rate']:.2f} requests/s" in screen
    assert "fewest chips that serve 64 users" in screen
    assert run("explain", path).code == 0
    assert "64 users ask all engines" in run("export", path, "--to", "vllm").err


def test_users_by_means_alone() -> None:
    words = (*CHAT, *BOUNDS, "--users", "64", "--traffic", "off", "--json")
    estimate = json.loads(run("plan", "llama3-8b", "h100:8", *words).out)["estimate"]
    assert estimate["traffic"] is None
    # Little's law: an answer has 255 tokens after the first.
    latency_s = estimate["ttft_s"] + 255 * estimate["tpot_s"]
    assert estimate["requests_per_s"] * latency_s == pytest.approx(64)


def test_means_alone_are_there_too() -> None:
    words = (*CHAT, *BOUNDS, "--rate", "20/s", "--traffic", "off", "--json")
    assert json.loads(run("plan", "llama3-8b", "h100:8", *words).out)["estimate"]["traffic"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("arrival,prompt\n0,1\n", "no column output"),
        ("arrival,prompt,output\n0,many,5\n1,2,3\n", 'prompt "many"'),
        ("arrival,prompt,output\n", "has no requests"),
        ("arrival,prompt,output\n0,5,5\n", "different times"),
        ("arrival,prompt,output,shared\n0,5,5,9\n1,5,5,9\n", "more than the prompt"),
    ],
)
def test_broken_recordings_are_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text(text)
    said = run("plan", "llama3-8b", "h100:8", "--serve", "--traffic", str(path), *BOUNDS)
    assert said.code == 2
    assert told in said.err.replace("\n  ", " ")
    assert "Traceback" not in said.err
    assert "needs" not in said.err  # a recording has the rate and the lengths


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--traffic", "poison", "--rate", "5/s", *CHAT[1:]), "unknown traffic"),
        (("--traffic", "none.jsonl"), "cannot read"),
        (("--traffic", "bursty:1", "--rate", "5/s", *CHAT[1:]), "above 1"),
        (("--traffic", "poisson", *CHAT[1:]), "--traffic needs --rate"),
        (("--at", "99", "--rate", "5/s", *CHAT[1:]), "not a percentile"),
        (("--at", "p90", *CHAT[1:]), "simulated requests"),
        (("--capacity", *CHAT[1:]), "--capacity needs a bound"),
        (("--users", "0", *CHAT[1:], *BOUNDS), '--users "0" is below 1'),
        (("--users", "-3", *CHAT[1:], *BOUNDS), '--users "-3" is negative'),
        (("--users", "1.5", *CHAT[1:], *BOUNDS), '--users "1.5" is not a whole number'),
        (("--users", "1000000000", *CHAT[1:], *BOUNDS), "is not between 1 and 100,000,000"),
        (("--users", "many", *CHAT[1:], *BOUNDS), "is not a number"),
        (("--users", "64", *CHAT[1:]), "--users needs a bound"),
        (("--users", "64", *BOUNDS), "--users needs the length of requests"),
        (("--users", "64", *CHAT[1:], *BOUNDS, "--rate", "5/s"), "users send after each answer"),
        (("--users", "64", *CHAT[1:], *BOUNDS, "--capacity"), "--capacity finds a rate"),
        (("--users", "64", *CHAT[1:], *BOUNDS, "--traffic", "bursty"), "times of arrival"),
        (("--users", "64", *CHAT[1:], *BOUNDS, "--traffic", "day.csv"), "times of arrival"),
    ],
)
def test_mistakes_are_told(words: tuple[str, ...], told: str) -> None:
    said = run("plan", "llama3-8b", "h100:8", "--serve", *words)
    assert said.code == 2
    assert told in said.err.replace("\n  ", " ")


def test_lengths_of_a_recording_are_not_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text('{"arrival":0,"prompt":9,"output":9}\n{"arrival":1,"prompt":9,"output":9}\n')
    said = run("plan", "llama3-8b", "h100:8", *CHAT, "--traffic", str(path), "--cached", "5%")
    assert said.code == 2
    assert "a recording has the lengths" in said.err
    assert "shared prefixes" in said.err
