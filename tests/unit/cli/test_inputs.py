"""Words of the command line: ranges, lists, meshes, and every problem at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.cli.inputs import Inputs, parse_fixed, parse_mesh, parse_words, roles
from shardwise.cli.machines import has_size
from shardwise.cli.ranges import parse_ranged_sizes, parse_values
from shardwise.errors import BadInput, BadUnit, ShardwiseError, UnknownName
from tests.golden.terminal import run


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8", (8,)),
        ("1,8,64", (1, 8, 64)),
        ("1-16", (1, 2, 4, 8, 16)),
        ("1-16*2", (1, 2, 4, 8, 16)),
        ("1-100*10", (1, 10, 100)),
        ("8-40+8", (8, 16, 24, 32, 40)),
        ("1k-4k*2", (1000, 2000, 4000)),
        ("7-7", (7,)),
        ("3-4*2", (3,)),
    ],
)
def test_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_values(text, "batch") == numbers


@given(low=st.integers(1, 10**6), factor=st.integers(2, 9), n=st.integers(0, 12))
def test_a_range_multiplies(low: int, factor: int, n: int) -> None:
    found = parse_values(f"{low}-{low * factor**n}*{factor}", "batch")
    assert found == tuple(low * factor**i for i in range(n + 1))


@pytest.mark.parametrize(
    "text", ["", "-", "8-", "-8", "8-4", "1-8*1", "1-8*0", "1-8+0", "1.5", "a"]
)
def test_no_ranges(text: str) -> None:
    with pytest.raises(BadUnit):
        parse_values(text, "batch")


def test_sizes_with_a_range() -> None:
    assert parse_ranged_sizes(["B=1-4*2", "D=8Ki", "F=2,3"]) == {
        "B": (1, 2, 4),
        "D": 8192,
        "F": (2, 3),
    }
    with pytest.raises(BadInput) as error:
        parse_ranged_sizes(["B=1-4*2", "B=7", "D", "E=x"])
    assert len(error.value.problems) == 3


def test_meshes() -> None:
    assert parse_mesh("tensor=8,fsdp=32", roles()) == {"tensor": 8, "fsdp": 32}
    assert parse_mesh("X=4,Y=2") == {"X": 4, "Y": 2}
    with pytest.raises(UnknownName, match='unknown mesh axis "X"'):
        parse_mesh("X=4", roles())
    with pytest.raises(BadInput) as error:
        parse_mesh("X=4,Y=2", roles())
    assert len(error.value.problems) == 2


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("tensor=8", {"tensor": 8}),
        ("tensor=8,zero=1,schedule=1f1b,virtual=2",
         {"tensor": 8, "zero": 1, "schedule": "1f1b", "virtual": 2}),
        (" pipe = 4 , remat = dots ", {"pipe": 4, "remat": "dots"}),
        ("context_kind=ulysses,micro_batch=2,n_microbatches=1Ki,expert_tensor=1",
         {"context_kind": "ulysses", "micro_batch": 2, "n_microbatches": 1024,
          "expert_tensor": 1}),
        ("zero=0", {"zero": 0}),  # a stage of ZeRO, and not a size
    ],
    ids=str,
)  # fmt: skip
def test_what_is_fixed(text: str, given: dict[str, int | str]) -> None:
    assert parse_fixed(text) == given


def test_all_problems_of_what_is_fixed_are_told() -> None:
    with pytest.raises(BadInput) as error:
        parse_fixed("schedule=1f2b,tensr=8,remat=some")
    for said in ('"1f2b"', '"tensr"', '"some"'):
        assert sum(said in problem for problem in error.value.problems) == 1, said


@given(text=st.text(max_size=30))
def test_what_is_fixed_raises_only_our_errors(text: str) -> None:
    for known in (text, f"tensor={text}", f"schedule={text}", f"{text}=2"):
        try:
            found = parse_fixed(known)
        except ShardwiseError:
            continue
        assert all(isinstance(value, int | str) for value in found.values())


def test_words() -> None:
    assert parse_words("bf16, int8", "dtype", ("bf16", "int8")) == ("bf16", "int8")
    with pytest.raises(BadInput) as error:
        parse_words("a,b,b", "dtype", ("bf16", "b"))
    assert error.value.problems == (
        'unknown dtype "a". Known: "b", "bf16".',
        "dtype b is given twice.",
    )


def test_one_problem_keeps_its_kind() -> None:
    inputs = Inputs()
    assert inputs.read(int, "3") == 3
    inputs.done()
    inputs.read(parse_values, "x", "batch")
    with pytest.raises(BadUnit):
        inputs.done()
    inputs.refuse("and this.")
    with pytest.raises(BadInput) as error:
        inputs.done()
    assert error.value.problems[-1] == "and this."


@pytest.mark.parametrize(
    ("text", "sized"), [("v5e", False), ("v5e:4x4", True), ("v5e,hbm=16GB", False)]
)
def test_sized(text: str, sized: bool) -> None:
    assert has_size(text) == sized


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(first=st.sampled_from(["plan", "fit", "roofline", "shard", "hw", "models"]), rest=WORDS)
def test_any_word_is_answered(first: str, rest: str) -> None:
    done = run(first, rest)
    assert done.code in (0, 2, 3), done.err
    assert "\x1b" not in done.err


@given(text=WORDS)
def test_ranges_raise_only_our_errors(text: str) -> None:
    try:
        found = parse_values(text, "batch")
    except ShardwiseError:
        return
    assert all(n >= 1 for n in found)
