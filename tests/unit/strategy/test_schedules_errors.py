"""What a schedule cannot do is told with the nearest numbers that work."""

from __future__ import annotations

import pytest

from shardwise.errors import BadShape, UnknownName
from shardwise.strategy import schedules


def problems(name: str, *shape: int) -> tuple[str, ...]:
    with pytest.raises(BadShape) as caught:
        schedules.find(name).order(*shape)
    return caught.value.problems


def test_schedules_are_found_by_name_and_alias() -> None:
    assert schedules.names() == ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")
    assert schedules.find("ZB_H1") is schedules.find("zb-h1") is schedules.find("zb1p")
    assert schedules.find("afab").name == "gpipe"
    with pytest.raises(UnknownName, match='Close: "interleaved"'):
        schedules.find("interleave")


def test_names_and_aliases_are_told_apart() -> None:
    words = [w for s in schedules.schedules().values() for w in (s.name, *s.aliases)]
    assert len(words) == len(set(words))


def test_interleaved_needs_whole_groups() -> None:
    assert problems("interleaved", 4, 10, 2) == (
        "10 microbatches are not a multiple of 4 stages (2.5), which interleaved needs "
        "(arXiv 2104.04473 §2.2.2). Nearest: 8, 12; or 1f1b.",
    )
    assert problems("interleaved", 8, 3, 1) == (
        "1 chunks on a stage: interleaved has 2 or more on each. With one chunk take 1f1b.",
        "3 microbatches are not a multiple of 8 stages (0.375), which interleaved needs "
        "(arXiv 2104.04473 §2.2.2). Nearest: 8; or 1f1b.",
    )


def test_dualpipe_tells_all_at_once() -> None:
    assert problems("dualpipe", 5, 7, 1) == (
        "1 chunks on a stage: dualpipe has 2 "
        "(arXiv 2412.19437 §3.2.1; github.com/deepseek-ai/DualPipe, 2025-03).",
        "5 stages are odd, and dualpipe pairs each with the one opposite. Nearest: 4, 6.",
        "7 microbatches are odd, and dualpipe sends half of them each way. Nearest: 10, 12.",
        "7 microbatches are fewer than dualpipe's least for 5 stages, 2 p = 10. "
        "Nearest: 10; or zb-h1 from 5 on.",
    )


def test_too_few_microbatches() -> None:
    assert problems("zb-h1", 8, 4) == (
        "4 microbatches are fewer than the 8 stages, too few for zb-h1 to defer weight "
        "gradients (arXiv 2401.10241 §2.1). Nearest: 8; or 1f1b.",
    )
    assert problems("zb-v", 8, 8) == (
        "8 microbatches are fewer than the 15 forward passes with which zb-v fills 8 stages "
        "(2 p - 1). Nearest: 15; or zb-h1 from 8 on.",
    )
    assert problems("1f1b", 0, 0) == ("0 stages is below 1.", "0 microbatches is below 1.")


@pytest.mark.parametrize("name", schedules.names())
def test_check_and_legal_agree(name: str) -> None:
    schedule = schedules.find(name)
    for p in range(0, 7):
        for m in range(0, 14):
            for v in (1, 2, 3):
                try:
                    schedule.check(p, m, v)
                except BadShape:
                    assert not schedule.legal(p, m, v)
                else:
                    assert schedule.legal(p, m, v)


def test_layers_of_chunks() -> None:
    find = schedules.find
    assert find("1f1b").layers(8, 4, 1)[1] == (range(2, 4),)
    assert find("interleaved").layers(8, 2, 2) == (
        (range(0, 2), range(4, 6)),
        (range(2, 4), range(6, 8)),
    )
    assert find("zb-v").layers(8, 2, 2) == ((range(0, 2), range(6, 8)), (range(2, 4), range(4, 6)))
    assert find("dualpipe").layers(8, 2, 2) == (
        (range(0, 4), range(4, 8)),
        (range(4, 8), range(0, 4)),
    )


def test_layers_that_do_not_divide() -> None:
    with pytest.raises(BadShape) as caught:
        schedules.find("interleaved").layers(30, 4, 2)
    assert caught.value.problems == (
        "30 layers do not divide over the 8 parts of interleaved (4 stages, 2 "
        "chunks on each): 3.75. Layers that do: 24, 32. Stages that do: 1, 3, 5, 15.",
    )
