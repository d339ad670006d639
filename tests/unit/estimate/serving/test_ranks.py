"""Data-parallel attention in a pass: a rank computes whole prompts, and the others wait for it."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.estimate.serving.pass_table import PassTable
from shardwise.search.given import fixed_of
from shardwise.search.serving.rank import Request, rank

DEEPSEEK = sw.model("deepseek-v3")
JOB = sw.Serve(context=0, prompt=4096, output=1024, weights="fp8", compute="fp8")
PAIRS = 4096 * 4097 / 2


@pytest.fixture(scope="module")
def tables() -> dict[str, PassTable]:
    """The pass times of 8 chips with data-parallel attention, and with tensor parallelism."""
    result = {}
    for role in ("expert", "tensor"):
        fixed = fixed_of({role: 8})
        request = Request(config=DEEPSEEK, hardware=sw.hardware("h200:8"), jobs=[JOB], fixed=fixed)
        result[role] = PassTable(rank(request, 0).candidates[0].server.engine, 40_000, 10_000)
    return result


def prefill_s(table: PassTable, lengths: list[int]) -> float:
    pairs = sum(n * (n + 1) / 2 for n in lengths)
    return table.pass_s(0, 0, sum(lengths), pairs, [(n, 0) for n in lengths])


def test_a_single_prompt_occupies_one_rank(tables: dict[str, PassTable]) -> None:
    table = tables["expert"]
    alone = prefill_s(table, [4096])
    assert alone > 2 * table.pass_s(0, 0, 4096, PAIRS)
    # Another rank computes the second prompt; only the experts see both.
    assert alone < prefill_s(table, [4096, 16]) < 1.05 * alone


def test_equal_prompts_on_all_ranks_are_even(tables: dict[str, PassTable]) -> None:
    table = tables["expert"]
    assert prefill_s(table, [4096] * 8) == pytest.approx(table.pass_s(0, 0, 8 * 4096, 8 * PAIRS))


def test_a_ninth_prompt_waits_for_a_rank(tables: dict[str, PassTable]) -> None:
    table = tables["expert"]
    # All ranks wait while one computes two prompts; the experts have an eighth more to do.
    assert prefill_s(table, [4096] * 9) > 1.3 * prefill_s(table, [4096] * 8)


def test_tensor_parallel_attention_has_no_ranks(tables: dict[str, PassTable]) -> None:
    table = tables["tensor"]
    assert prefill_s(table, [4096]) == table.pass_s(0, 0, 4096, PAIRS)
