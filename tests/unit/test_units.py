"""Quantities at the edges: read with their units, written with their units."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import units
from shardwise.errors import BadInput, BadShape, BadUnit, UnknownName

PARSERS: list[Callable[[str], float]] = [
    units.parse_count,
    units.parse_whole,
    units.parse_bytes,
    units.parse_rate,
    lambda text: units.parse_rate(text, per="FLOP"),
    units.parse_seconds,
    lambda text: units.parse_measure(text, "Hz", "clock"),
    lambda text: units.parse_measure(text, "USD/h", "price"),
]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("32k", 32768), ("32K", 32768), ("1k", 1024), ("512k", 512 * 1024), ("1M", 2**20),
        ("4Ki", 4096), ("32000", 32000), ("100k", 100_000), ("3k", 3000), ("10M", 10**7),
        ("1.5k", 1500), ("8", 8), ("2B", 2 * 10**9),
    ],
)  # fmt: skip
def test_k_is_1024_after_a_power_of_two(text: str, tokens: int) -> None:
    assert units.parse_length(text) == tokens


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096), ("15T", 15e12), ("4Mi", 4 * 1024**2), ("1.5e12", 1.5e12), ("2B", 2e9),
        ("2G", 2e9), ("8k", 8e3), ("8K", 8e3), ("8Ki", 8192), (" 7 M ", 7e6), (".5k", 500),
        ("0", 0), ("+3", 3), ("1e-3", 1e-3), ("5.", 5), ("1Gi", 2**30), ("1Ti", 2**40),
    ],
)  # fmt: skip
def test_counts(text: str, value: float) -> None:
    assert units.parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16GB", 16e9), ("16 GiB", 16 * 2**30), ("16GiB", 17179869184), ("1B", 1), ("1kB", 1e3),
        ("96 GB", 96e9), ("1.5TB", 1.5e12), ("3KiB", 3072), ("1MiB", 2**20), ("2TiB", 2**41),
    ],
)  # fmt: skip
def test_sizes(text: str, value: float) -> None:
    assert units.parse_bytes(text) == value


def test_gb_is_not_gib() -> None:
    assert units.parse_bytes("1GiB") / units.parse_bytes("1GB") == 2**30 / 1e9
    assert units.show_bytes(96e9) == "96.0 GB"
    assert units.show_gib(96e9) == "89.4 GiB"


@pytest.mark.parametrize(
    ("text", "per", "value"),
    [
        ("2.8e12 B/s", "B", 2.8e12), ("400 Gb/s", "B", 50e9), ("50GB/s", "B", 50e9),
        ("1 GiB/s", "B", 2**30), ("8 b/s", "B", 1), ("989 TFLOP/s", "FLOP", 989e12),
        ("394 TOP/s", "FLOP", 394e12), ("1 PFLOPs/s", "FLOP", 1e15), ("2 TFLOPS", "FLOP", 2e12),
    ],
)  # fmt: skip
def test_rates(text: str, per: str, value: float) -> None:
    assert units.parse_rate(text, per=per) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("300ms", 0.3), ("1 us", 1e-6), ("1µs", 1e-6), ("2h", 7200), ("46 days", 46 * 86400),
     ("5 ns", 5e-9), ("1.5 s", 1.5), ("2min", 120), ("1 day", 86400), ("3 hours", 10800)],
)  # fmt: skip
def test_durations(text: str, value: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(value, rel=1e-15)


def test_other_quantities() -> None:
    assert units.parse_measure("1.75 GHz", "Hz", "clock") == 1.75e9
    assert units.parse_measure("700 W", "W", "power") == 700
    assert units.parse_measure("4.2 USD/h", "USD/h", "price") == 4.2


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("4k", 4000), ("4Ki", 4096), ("1e3", 1000), ("2.0", 2)]
)
def test_whole_numbers(text: str, value: int) -> None:
    found = units.parse_whole(text)
    assert found == value
    assert isinstance(found, int)


@pytest.mark.parametrize(
    ("parse", "text", "told"),
    [
        (units.parse_count, "", 'count "" is not a number. Write a number and a unit.'),
        (units.parse_count, "abc", 'count "abc" is not a number'),
        (units.parse_count, "1,000", '",000" is not a multiplier'),
        (units.parse_count, "5X", '"X" is not a multiplier. Use k, M, B, T or Ki, Mi, Gi.'),
        (units.parse_count, "-3", 'count "-3" is negative.'),
        (units.parse_count, "1e999", 'count "1e999" is too large to be a number.'),
        (units.parse_count, "nan", "is not a number"),
        (units.parse_count, "inf", "is not a number"),
        (units.parse_count, "0x10", "is not a multiplier"),
        (units.parse_whole, "1.5", 'count "1.5" is not a whole number.'),
        (units.parse_whole, "0", 'count "0" is below 1.'),
        (units.parse_bytes, "16", "size 16 has no unit. 16GB = 1.6e+10 bytes, 16GiB = 1.718e+10 "
                                  "bytes: a 7 % difference."),
        (units.parse_bytes, "16Gb", '"Gb" is not a size. Use B, kB, MB, GB, TB or KiB, MiB, GiB.'),
        (units.parse_bytes, "16BB", '"BB" is not a size'),
        (units.parse_bytes, "-1GB", 'size "-1GB" is negative.'),
        (units.parse_rate, "100", 'rate "100" has no unit. Use B/s, GB/s, TB/s or Gb/s (bits).'),
        (units.parse_rate, "100 GB", 'rate "100 GB" has the wrong unit'),
        (units.parse_rate, "-1 B/s", "is negative"),
        (PARSERS[4], "100 GB/s", "has the wrong unit. Use FLOP/s, TFLOP/s or TOP/s."),
        (units.parse_seconds, "3", 'time "3" has no unit. Use us, ms, s, min, h or days.'),
        (units.parse_seconds, "3 weeks", 'time "3 weeks" has an unknown unit'),
        (units.parse_seconds, "-3s", 'time "-3s" is negative.'),
        (PARSERS[6], "3", 'clock "3" has no unit. Use Hz.'),
        (PARSERS[6], "3 W", 'clock "3 W" has the wrong unit. Use Hz.'),
        (PARSERS[6], "-3 Hz", 'clock "-3 Hz" is negative.'),
    ],
)  # fmt: skip
def test_what_is_refused(parse: Callable[[str], float], text: str, told: str) -> None:
    with pytest.raises(BadUnit) as error:
        parse(text)
    assert told in str(error.value)


numbers = st.text(alphabet="0123456789.eE+-", max_size=8)
words = st.text(alphabet="kKMGBTPEiBbsFLOPun/ µhday", max_size=8)


@settings(max_examples=300)
@given(
    st.sampled_from(PARSERS),
    st.one_of(st.text(max_size=20), st.tuples(numbers, words).map("".join)),
)
def test_any_text_is_a_finite_number_or_refused(parse: Callable[[str], float], text: str) -> None:
    try:
        value = parse(text)
    except BadUnit:
        return
    assert value >= 0
    assert math.isfinite(value)


@given(st.floats(1e-3, 1e17), st.integers(1, 6))
def test_what_is_shown_is_close_to_what_it_was(value: float, digits: int) -> None:
    near = pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
    shown = units.show_bytes(value, digits).replace(",", "")
    assert units.parse_bytes(shown) == near
    assert units.parse_bytes(units.show_gib(value, digits).replace(",", "")) == near
    rate = units.show_rate(value, "FLOP/s", digits).replace(",", "")
    assert units.parse_rate(rate, per="FLOP") == near
    if value < 1e15:
        count = units.show_count(value, max(3, digits)).replace(",", "")
        assert units.parse_count(count) == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.show_bytes(131e6), "131 MB"),
        (units.show_bytes(0), "0 B"),
        (units.show_bytes(999_999_999), "1.00 GB"),
        (units.show_gib(95.9e9), "89.3 GiB"),
        (units.show_gib(512), "512 B"),
        (units.show_count(4_587_520), "4.59M"),
        (units.show_count(70_553_706_496), "70.6B"),
        (units.show_count(15e12), "15.0T"),
        (units.show_count(8960), "8,960"),
        (units.show_count(12.5), "12.5"),
        (units.show_rate(459e12, "FLOP/s"), "459 TFLOP/s"),
        (units.show_rate(2.765e12, "B/s"), "2.77 TB/s"),
        (units.show_seconds(1.2e-6), "1.20 us"),
        (units.show_seconds(0.483), "483 ms"),
        (units.show_seconds(3.14), "3.14 s"),
        (units.show_seconds(9000), "2.50 h"),
        (units.show_seconds(46.1 * 86400), "46.1 days"),
        (units.show_seconds(2 * 365 * 86400), "2.00 years"),
        (units.show_seconds(0), "0 s"),
        (units.show_dollars(41.2e6), "$41.2M"),
        (units.show_dollars(10.8), "$10.80"),
        (units.significant(1234.5), "1,234"),
        (units.significant(0.0012345), "0.00123"),
        (units.significant(99.96), "100"),
        (units.significant(9.996), "10.0"),
        (units.significant(-9.996), "-10.0"),
        (units.significant(1.7976e308), "1.80e+308"),
        (units.significant(0), "0"),
        (units.significant(math.inf), "inf"),
    ],
)
def test_what_is_shown(shown: str, text: str) -> None:
    assert shown == text


def test_bytes_of_an_element() -> None:
    sizes = {"fp64": 8, "fp32": 4, "bf16": 2, "fp8": 1, "int8": 1, "int4": 0.5, "fp4": 0.5}
    assert {d: units.bytes_per_element(d) for d in sizes} == sizes
    with pytest.raises(UnknownName, match=r'unknown dtype "bf61". Close: "bf16"'):
        units.bytes_per_element("bf61")


def test_prefixes_are_what_they_say() -> None:
    assert (units.KB, units.MB, units.GB, units.TB) == (10**3, 10**6, 10**9, 10**12)
    assert (units.KiB, units.MiB, units.GiB, units.TiB) == (2**10, 2**20, 2**30, 2**40)
    assert (units.MINUTE, units.HOUR, units.DAY, units.YEAR) == (60, 3600, 86400, 31_536_000)


def test_sizes_from_words() -> None:
    assert units.parse_sizes(("B=1024", " D = 8Ki ", "F=1k")) == {"B": 1024, "D": 8192, "F": 1000}
    with pytest.raises(BadShape) as error:
        units.parse_sizes(("B", "=4", "D=1.5", "D=2", "F=0", "G=2", "G=3", "H=x"), "dim")
    assert error.value.problems == (
        '"B" is not NAME=SIZE. Write B=8.',
        '"=4" is not NAME=SIZE. Write NAME=8.',
        'dim D "1.5" is not a whole number.',
        'dim F "0" is below 1.',
        "dim G is given twice.",
        'dim H "x" is not a number. Write a number and a unit.',
    )


@given(st.lists(st.text(alphabet="BDF=0123456789kKi. -", max_size=8), max_size=4))
def test_any_words_are_sizes_or_refused(parts: list[str]) -> None:
    try:
        sizes = units.parse_sizes(parts)
    except BadInput:
        return
    assert all(n >= 1 for n in sizes.values())
