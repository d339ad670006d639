"""Worked answers of the book that are not among the cases, by the same functions.

Printed figures are rounded as the book rounds them; each row says how much.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardwise.book.givens import dense, ring
from shardwise.formulas import (
    flops,
    inference,
    links,
    memory,
    roofline,
    thresholds,
)
from shardwise.formulas.matmul import shard
from shardwise.hardware import fat_tree, find_chip, parse_system
from shardwise.models import count, load
from shardwise.ops import collective
from shardwise.ops.notation import parse_array, parse_einsum
from shardwise.ops.sharded import Move, derive
from shardwise.strategy.span import Span

V4P = {"X": 4, "Y": 4, "Z": 4}


def moved_s(kind: str, before: str, after: str, axes: str) -> float:
    """Seconds of one collective on bf16 B=1024, D=4096, one ring of 4 v4p chips per mesh axis."""
    move = Move(kind, tuple(axes), parse_array(before), parse_array(after))
    n_bytes = move.joined_bytes({"B": 1024, "D": 4096}, V4P, 2)
    return float(collective.time_s(kind, n_bytes, ring(4, 9e10)))


def bound_steps(batch: int) -> float:
    """Milliseconds of a LLaMA-2-13B decode step with 8 key heads of 40, 8 v5e."""
    step = inference.decode_step(batch, 1.34e9, 26e9, n_chips=8, hbm_bytes_per_s=8.2e11)
    return float(1e3 * step.step_s)


ANSWERS: list[tuple[str, Callable[[], float], float, float]] = [
    ("§1 two chips: D > 8755", lambda: thresholds.split_contraction_width(2, 1.97e14, 4.5e10),
     8755, 1e-3),
    ("§1 Q4: one weight matrix per sequence has intensity 2 in int8",
     lambda: roofline.Matmul(B=1, D=4096, F=4096, a_bytes=1, w_bytes=1, out_bytes=1).intensity,
     2, 1e-3),
    ("§2 Q5: the first byte after about 6 us", lambda: links.point_to_point_s(
        0, 6, link_bytes_per_s_one_way=4.5e10, hop_s=1e-6), 6e-6, 1e-9),
    ("§3 Q2: FLOPs of one chip, 2BDF/(XY)", lambda: derive(
        parse_einsum("A[B_X,D_Y] . W[D_Y,F] -> C[B_X,F]")).local_flops(
            {"B": 64, "D": 128, "F": 256}, {"X": 4, "Y": 8, "Z": 4}), 2 * 64 * 128 * 256 / 32, 0),
    ("§3 Q2: AllReduce_Z takes 11.6 us", lambda: moved_s(
        "all_reduce", "A[B_X,D_Y] {U_Z}", "A[B_X,D_Y]", "Z"), 11.6e-6, 1e-2),
    ("§3 Q2: AllToAll_X takes 5.8 us", lambda: moved_s(
        "all_to_all", "A[B_X,D_Y]", "A[B,D_YX]", "X"), 5.8e-6, 1e-2),
    ("§4: 21.7 % of the H800s' peak trained DeepSeek-V3",
     lambda: flops.training_flops(37e9, 14.8e12) / (2.79e6 * 3600 * 1.513e15), 0.217, 5e-3),
    ("§4: int8 experts of DeepSeek-V3 need 3840 tokens", lambda: thresholds.data_parallel_tokens(
        120, n_experts=256, experts_per_token=8), 3840, 0),
    ("§5: 73,440 tokens for each chip's share of DCN",
     lambda: thresholds.alpha(find_chip("v5p").quoted("book"), "dcn"), 73_440, 0),
    ("§6: four checkpoints of a layer take 20.9 TB",
     lambda: memory.saved_bytes(4e6, 80, [8192] * 4), 20.9e12, 5e-3),
    ("§7: 240 GQA sequences in 52.99 ms", lambda: bound_steps(240), 52.99, 1e-4),
    ("§7: one GQA sequence in 4.17 ms", lambda: bound_steps(1), 4.17, 1e-3),
    ("§7: 30B int8 at batch 256 in about 21 ms", lambda: inference.decode_step(
        256, 8192 * 100e3, 30e9, n_chips=16, hbm_bytes_per_s=8.1e11, params=30e9,
        flops_per_s=1.97e14).step_s, 21e-3, 5e-3),
    ("§7 Q1: 18.4e9 parameters", lambda: count.parameters(dense(
        {"L": 64, "D": 4096, "F": 16_384, "N": 32, "K": 8, "H": 256, "V": 32_128},
        tied=True)).total, 18.4e9, 1e-3),
    ("§8: bf16 weights need 8.75 chips, so 9", lambda: memory.chips_to_hold(140e9, 16e9), 9, 0),
    ("§8: 43 caches beside them on 16", lambda: inference.max_batch(
        16, 16e9, 140e9, count.kv_cache_bytes(load("llama3-70b"), 8192)), 43, 0),
    ("§12: 128 spine switches for 4096 H100",
     lambda: fat_tree(find_chip("h100"), 4096).n_spines, 128, 0),
    ("§12: 64 core switches above them",
     lambda: fat_tree(find_chip("h100"), 4096).n_cores, 64, 0),
]  # fmt: skip


@pytest.mark.parametrize(("compute", "printed", "rel"), [a[1:] for a in ANSWERS],
                         ids=[a[0] for a in ANSWERS])  # fmt: skip
def test_answer(compute: Callable[[], float], printed: float, rel: float) -> None:
    assert compute() == pytest.approx(printed, rel=rel, abs=0)


def test_the_matmul_of_question_5_needs_no_communication() -> None:
    # §3 Q5: on v5p 4x4x4 the fastest way shards a kept dim over all chips.
    found = shard(
        "A[I,J] . B[J,K_XYZ] -> C[I,K_XYZ]",
        mesh=V4P,
        on=parse_system("v5p:4x4x4"),
        sizes={"I": 128, "J": 4096, "K": 8192},
    )
    assert found.best.steps == ()
    assert found.best.flops_per_chip == 2 * 128 * 4096 * 8192 / 64


def test_gathering_on_one_chip_is_bound_by_its_two_links() -> None:
    # §2 Q6: int8[128k, 128k] from 16 chips to a corner of a v5e 4x4.
    seconds = links.gather_to_one_s(2**34, 16, links=2, link_bytes_per_s_one_way=4.5e10)
    assert seconds == pytest.approx(2**34 * 15 / 16 / 9e10)


def test_a_span_without_links_costs_nothing() -> None:
    assert collective.time_s("all_gather", 1e9, Span()) == 0
