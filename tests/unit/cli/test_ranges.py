"""Ranges of numbers and of batches on the command line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.cli.ranges import parse_batches, parse_values
from shardwise.errors import BadInput, BadShape, BadUnit

WRITE = "Write 8, a list 1,2,4, a range that multiplies 8-512*2, or one that adds 8-64+8."


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", (8,)),
        ("1,2,4", (1, 2, 4)),
        (" 1, 2 ", (1, 2)),
        ("8-512*2", (8, 16, 32, 64, 128, 256, 512)),
        ("8-500*2", (8, 16, 32, 64, 128, 256)),
        ("8-64", (8, 16, 32, 64)),
        ("8 - 64 * 2", (8, 16, 32, 64)),
        ("8-64+8", (8, 16, 24, 32, 40, 48, 56, 64)),
        ("7-7+1", (7,)),
        ("4k-32k*2", (4000, 8000, 16000, 32000)),
        ("1Ki,2Ki", (1024, 2048)),
        ("1.5k", (1500,)),
        ("1e3", (1000,)),
    ],
)
def test_values(text: str, values: tuple[int, ...]) -> None:
    assert parse_values(text, "chips") == values


@given(low=st.integers(1, 10**6), step=st.integers(1, 10**4), n=st.integers(0, 999))
def test_a_range_that_adds(low: int, step: int, n: int) -> None:
    found = parse_values(f"{low}-{low + n * step}+{step}", "chips")
    assert found == tuple(range(low, low + n * step + 1, step))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8-4*2", 'chips "8-4*2" goes down: 8 is above 4.'),
        ("64-8+8", 'chips "64-8+8" goes down: 64 is above 8.'),
        ("8-64*1", 'chips "8-64*1" does not grow: a factor is 2 or more.'),
        ("8-64*1.5", 'factor of chips "1.5" is not a whole number.'),
        ("8-64+0", 'step of chips "0" is below 1.'),
        ("8-", 'chips "8-" is neither LOW-HIGH*FACTOR nor LOW-HIGH+STEP.'),
        ("-8", 'chips "-8" is neither LOW-HIGH*FACTOR nor LOW-HIGH+STEP.'),
        ("8-64*2+8", 'chips "8-64*2+8" is neither LOW-HIGH*FACTOR nor LOW-HIGH+STEP.'),
        ("8*2", 'chips "8*2" is neither LOW-HIGH*FACTOR nor LOW-HIGH+STEP.'),
        ("1, 2-8*2", 'chips "2-8*2" is a range inside a list.'),
        ("1,,2", 'chips "" is not a number. Write a number and a unit.'),
        ("", 'chips "" is not a number. Write a number and a unit.'),
        ("1.5", 'chips "1.5" is not a whole number.'),
        ("0", 'chips "0" is below 1.'),
        ("8GB", 'chips "8GB": "GB" is not a multiplier. Use k, M, B, T or Ki, Mi, Gi.'),
        ("1-1001+1", 'chips "1-1001+1" has over 1,000 values. Take larger steps.'),
        ("1-1e300+1", 'chips "1-1e300+1" has over 1,000 values. Take larger steps.'),
        (",".join(["8"] * 1001), "chips is a list of 1,001; at most 1,000 are compared."),
    ],
)
def test_no_values(text: str, told: str) -> None:
    with pytest.raises(BadUnit) as error:
        parse_values(text, "chips")
    assert error.value.problems == (told, WRITE)


def test_a_thousand_values_are_taken() -> None:
    assert len(parse_values("1-1000+1", "chips")) == 1000
    assert len(parse_values(",".join(["8"] * 1000), "chips")) == 1000
    assert len(parse_batches("1-1000+25x1-25+1")) == 1000


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        ("1024x4096", ((1024, 4096),)),
        ("512-2048*2x4096", ((512, 4096), (1024, 4096), (2048, 4096))),
        ("1024x4k-32k*2", ((1024, 4096), (1024, 8192), (1024, 16384), (1024, 32768))),
        ("1,2x8,16", ((1, 8), (1, 16), (2, 8), (2, 16))),
        (" 8 × 128-256 ", ((8, 128), (8, 256))),
        ("8X128", ((8, 128),)),
    ],
)
def test_batches(text: str, batches: tuple[tuple[int, int], ...]) -> None:
    assert parse_batches(text) == batches


@pytest.mark.parametrize("text", ["1024", "1024x", "x4096", " x ", "2x3x4", "", "8x4,16x8"])
def test_a_batch_is_sequences_of_a_length(text: str) -> None:
    with pytest.raises(BadShape) as error:
        parse_batches(text)
    assert error.value.problems == (
        f'batch "{text}" is not SEQUENCESxLENGTH. Write 1024x4096: SEQUENCESxLENGTH, either one a '
        "range, 512-2048*2x4096, 1024x4k-32k*2.",
    )


def test_both_parts_are_told() -> None:
    with pytest.raises(BadShape) as error:
        parse_batches("0-4*2x8-4")
    assert error.value.problems[:-1] == (
        'batch sequences "0" is below 1.',
        'sequence length "8-4" goes down: 8 is above 4.',
    )
    assert error.value.problems[-1].startswith("Write 1024x4096: SEQUENCESxLENGTH")


def test_too_many_batches() -> None:
    with pytest.raises(BadShape, match=r"is 100 x 11 = 1,100 batches; at most 1,000 are compared"):
        parse_batches("1-100+1x1-11+1")


@given(st.text(alphabet="0123456789-+*,xkKi. e", max_size=16))
def test_any_text_is_read_or_refused(text: str) -> None:
    found: list[int] = []
    with contextlib.suppress(BadInput):
        found += parse_values(text, "chips")
    with contextlib.suppress(BadInput):
        found += [n for batch in parse_batches(text) for n in batch]
    assert all(isinstance(n, int) and n >= 1 for n in found)
