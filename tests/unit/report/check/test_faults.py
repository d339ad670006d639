"""What is said of a fault, where, and what is offered against it."""

from __future__ import annotations

import pytest

from shardwise.check.source_line import SourceLine
from shardwise.check.user.fault import Fault, argument_of
from shardwise.check.user.whole import names_of_leaves
from shardwise.report.check.faults import remedy, sentence

PLACE = {"scope": "mlp", "sources": (SourceLine("nowhere/model.py", 20),)}


@pytest.mark.parametrize(
    ("fault", "words", "help_words"),
    [
        (
            Fault(kind="not donated", arguments=("w", "mu", "nu"), bytes=453 * 2**20, share=0.03),
            "Not donated: 453 MiB of w, mu and nu may be reused in place.",
            'donate_argnames=["w", "mu", "nu"]',
        ),
        (
            Fault(kind="not donated", arguments=(0, 2), share=0.03),
            "Not donated: 0 B of argument 0 and argument 2 may be reused in place.",
            "donate_argnums=[0, 2]",
        ),
        (
            Fault(
                kind="repeated work", axes=("model",), n_chips=4, share=0.38, **PLACE
            ),
            "The same products are computed on the 4 chips along model: 38% of the FLOPs in mlp "
            "(model.py:20).",
            "split one operand over model",
        ),
        (
            Fault(
                kind="repeated work", axes=("model",), n_chips=4, share=0.08, bytes=101 * 10**6,
                seconds=0.003, constraint=(SourceLine("model.py", 22),), **PLACE
            ),
            "The constraint at model.py:22 keeps an array whole on the 4 chips along model, which "
            "all compute it in mlp (model.py:20): 8% of the FLOPs too much and 101 MB gathered for "
            "it, 3.00 ms a run.",
            "split it over model at model.py:22",
        ),
        (
            Fault(
                kind="reshard in a loop", subject="all-to-all of bf16[8]", share=0.5, n_runs=4,
                seconds=0.003, **PLACE
            ),
            "A reshard inside a loop: all-to-all of bf16[8] in mlp (model.py:20), 4 times, 50% of "
            "the traffic, 3.00 ms a run.",
            "the same sharding before and after",
        ),
        (
            Fault(kind="whole arguments", arguments=("w",), axes=("a", "b"), n_chips=16, share=0.5),
            "Arguments are whole on all 16 chips: 0 B of w.",
            "shard w over a or b",
        ),
    ],
)  # fmt: skip
def test_sentences(fault: Fault, words: str, help_words: str) -> None:
    assert sentence(fault, n_devices=16) == words
    assert help_words in remedy(fault)


def test_a_chip_with_two_devices_is_not_one() -> None:
    fault = Fault(kind="whole arguments", arguments=("w",), axes=("a",), n_chips=16, share=0.5)
    assert "all 16 devices" in sentence(fault, n_devices=16, device="device")


def test_a_large_leaf_has_its_whole_name() -> None:
    sizes = {"weights.embedding": 1000, "weights.norm": 1, "cache.k": 900, "state": 500}
    assert names_of_leaves(sizes) == ("weights.embedding", "cache.k", "state")
    layers = {f"params['layers'][{number}]": 10 for number in range(4)}
    assert names_of_leaves(layers | {"args[1].w": 10}) == ("params", 1)


def test_names_of_arguments() -> None:
    leaves = ["state[0]['w']", "state[1].mu", "tokens"]
    assert [*map(argument_of, leaves)] == ["state", "state", "tokens"]
    assert [*map(argument_of, ["args[0]['w']", "arrays[2]"])] == [0, 2]
