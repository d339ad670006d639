"""Screens that say what they count: the memory that is over, the convention of FLOPs."""

from __future__ import annotations

import json
import shlex

import pytest

from shardwise import units
from tests.golden.terminal import run

TOO_LARGE = "plan llama3-70b h100:8 --train --batch 8x4096 --mesh tensor=8"


def test_a_mesh_that_does_not_fit_says_which_memory_is_over() -> None:
    done = run(*shlex.split(TOO_LARGE))
    assert done.code == 3
    text = " ".join(done.out.split())
    memory = json.loads(run(*shlex.split(TOO_LARGE), "--json").out)
    parts = memory["estimate"]["memory_bytes_per_chip"]
    excess = parts["total"] + parts["margin"] - parts["capacity"]
    assert f"over by {units.show_gib(excess)}" in text
    largest = max(("weights", "gradients", "optimizer", "activations"), key=parts.__getitem__)
    assert f"It takes {largest} {units.show_gib(parts[largest])}" in text


def test_a_plan_that_fits_does_not_say_so() -> None:
    done = run(*shlex.split("plan llama3.2-1b h100:8 --train --batch 8x4096 --mesh fsdp=8"))
    assert done.code == 0
    assert "\nover " not in done.out


def test_conventions_of_flops() -> None:
    counts = json.loads(run("models", "llama3-8b", "--flops", "--seq", "8192", "--json").out)
    ways = counts["training_flops_per_token_by_convention"]
    training = counts["training_flops_per_token"]
    assert ways["model, causal"] == training["total"]
    scores = training["scores"]
    assert ways["model, full square"] - ways["model, causal"] == pytest.approx(scores, rel=1e-3)
    assert ways["hardware, causal"] == pytest.approx(4 / 3 * training["total"])
    assert ways["6 per parameter"] == pytest.approx(training["total"] - scores)
    screen = run("models", "llama3-8b", "--flops", "--seq", "8192").out
    assert all(name in screen for name in ways)
