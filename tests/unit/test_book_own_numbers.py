"""`shardwise book ID --set`: the numbers of a case replaced by one's own."""

from __future__ import annotations

import json

import pytest

from shardwise.book.case import cases, find
from shardwise.book.own_numbers import with_numbers
from shardwise.book.run import OwnResult, run_with
from shardwise.errors import BadInput, ShardwiseError
from tests.golden.terminal import run

CASE = "sharding-q2-1"


def numbers_of(given: dict[str, object]) -> list[str]:
    """Each number of a case as it would be typed."""
    return [
        f"{name}={value!r}"
        for name, value in given.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    ]


def outcome(case_id: str, numbers: str) -> OwnResult | None:
    """The answer with other numbers; None if they are refused."""
    try:
        return run_with(case_id, numbers)
    except ShardwiseError:
        return None


def test_the_books_own_numbers_change_nothing() -> None:
    tried = 0
    for case in cases():
        words = numbers_of(dict(case.given))
        if words:
            result = run_with(case.id, ",".join(words))
            assert result.changed == {}, case.id
            tried += 1
    assert tried > 150


def test_every_case_takes_another_chip_or_says_why_not() -> None:
    results = [outcome(case.id, "chip=v5p") for case in cases()]
    assert sum(bool(result and result.changed) for result in results) > 60


def test_every_number_can_be_doubled_without_a_bug() -> None:
    for case in cases():
        for word in numbers_of(dict(case.given)):
            name, _, value = word.partition("=")
            result = outcome(case.id, f"{name}={2 * float(value)!r}")
            assert result is None or name in result.changed


def test_a_chip_brings_its_figures_and_a_letter_its_dim() -> None:
    given = with_numbers(find(CASE), "B=2048,chip=v5p")
    assert given["chip"] == "v5p"
    assert given["shape"] == [2048, 4096]
    assert given["ici_bidi_bytes_per_s"] == 1.8e11
    assert with_numbers(find(CASE), "chip=v5p,ici_bidi_bytes_per_s=90GB/s")[
        "ici_bidi_bytes_per_s"
    ] == pytest.approx(9e10)
    assert find(CASE).given["shape"] == [1024, 4096]  # the case itself is as it was


def test_time_grows_with_the_array_and_falls_with_bandwidth() -> None:
    book, twice = run_with(CASE, "B=1024"), run_with(CASE, "B=2048")
    fast = run_with(CASE, "ici_bidi_bytes_per_s=180GB/s")
    assert twice.answer == pytest.approx(2 * book.answer)
    assert fast.answer == pytest.approx(book.answer / 2)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ("foo=3", 'unknown number of sharding-q2-1 "foo"'),
        ("chip=v9", 'unknown chip "v9"'),
        ("B", '"B" is no NAME=VALUE'),
        ("B=1,B=2", "given twice"),
        ("B=-1", "not above 0"),
        ("B=nan", "not above 0"),
        ("B=x", '"x" is not a number'),
        ("shape=[1,2", "a bracket has no other"),
        ("mesh=4", "set mesh.X=VALUE"),
        ("mesh.W=4", 'unknown number of mesh "W"'),
        ("chip=h100", "has no ici_bidi_bytes_per_s"),
        ("chip=v6e", "the mesh of sharding-q2-1 has 3 axes, and the torus of v6e 2"),
    ],
)
def test_numbers_that_a_case_cannot_take(numbers: str, message: str) -> None:
    with pytest.raises(BadInput) as raised:
        with_numbers(find(CASE), numbers)
    assert message in str(raised.value)


def test_on_the_command_line() -> None:
    said = run("book", CASE, "--set", "B=2048,chip=v5p")
    assert said.code == 0
    assert "(book: 9e+10)" in " ".join(said.out.split())
    document = json.loads(run("book", CASE, "--set", "B=2048", "--json").out)
    assert document["changed"] == {"shape": [2048, 4096]}
    for words in (("book", "--set", "B=1"), ("book", "5", "--set", "B=1")):
        refused = run(*words)
        assert refused.code == 2
        assert "is for one case" in refused.err


def test_a_chip_brings_its_peaks_too_or_asks_for_them() -> None:
    given = with_numbers(find("inference-bcrit-dtypes"), "chip=v6e")
    assert (given["bf16"], given["int8"]) == (9.18e14, 1.836e15)
    case = find("roofline-vpu-critical-intensity")
    with pytest.raises(BadInput, match=r"vpu_flops_per_s of .* would stay that of the book's chip"):
        with_numbers(case, "chip=v6e")
    given = with_numbers(case, "chip=v6e,vpu_flops_per_s=9e12")
    assert given["vpu_flops_per_s"] == 9e12
