"""Entries on disk: whole or not there, bounded, and under a name that says all."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.check.compiling import cache, process
from shardwise.check.compiling.cache import job_key, key_of, read, write
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.result import (
    BadOption,
    Compiled,
    Memory,
    OutOfMemory,
    Place,
    decode,
    encode,
)
from shardwise.check.compiling.targets import target_of
from shardwise.errors import BadFile
from shardwise.hardware import parse_system

MADE = Compiled(
    constraints=(),
    name="step",
    target=target_of(parse_system("v5e:4x4*2")),
    mesh={"data": 2, "model": 16},
    places=(Place(coords=(0, 1, 0), slice_index=1),),
    hlo_gz=gzip.compress(b"HloModule step"),
    memory=Memory(arguments=3, output=2, alias=1, temporaries=5, peak=7),
    cost={"flops": 1.5},
    options={"xla_a": "true"},
    versions={"jax": "0.10"},
    lower_s=0.1,
    compile_s=2.0,
    rss_bytes=10,
)


def test_a_result_survives_its_document() -> None:
    failure = OutOfMemory(required=20, available=10, text="no", program=MADE)
    assert decode(encode(MADE)) == MADE
    assert decode(encode(failure)) == failure
    assert decode(encode(MADE)).hlo == "HloModule step"  # type: ignore[union-attr]


@pytest.mark.parametrize("document", [b"", b"{}", b'{"kind": "Odd", "value": 1}', b"[1]"])
def test_other_documents_are_refused(document: bytes) -> None:
    with pytest.raises(BadFile):
        decode(document)


def test_with_arrays_on_the_host_the_peak_is_no_measure() -> None:
    assert MADE.memory.device_bytes == 7
    assert replace(MADE.memory, host_temporaries=100, peak=103).device_bytes == 3 + 2 - 1 + 5


def test_written_and_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a") is None
    write(tmp_path, "a", MADE)
    assert read(tmp_path, "a") == replace(MADE, cached=True)
    assert read(tmp_path, "b") is None


def test_that_a_program_does_not_fit_is_kept_too(tmp_path: Path) -> None:
    failure = OutOfMemory(required=20, available=10, text="no", program=MADE)
    write(tmp_path, "a", failure)
    assert read(tmp_path, "a") == failure


JOB = Job(builder="m:f", target=target_of(parse_system("v5e:2x2")), self_contained=True)


@pytest.mark.parametrize(
    "change",
    [
        {"builder": "m:g"},
        {"target": target_of(parse_system("v5e:4x4"))},
        {"arguments": {"plan": "other"}},
        {"options": {"xla_a": "true"}},
        {"explain": False},
    ],
)
def test_the_key_of_a_job_says_all_of_it(change: dict[str, Any]) -> None:
    assert job_key(JOB) == job_key(replace(JOB, cache_path="elsewhere"))
    assert job_key(JOB) != job_key(replace(JOB, **change))


def test_the_key_of_a_job_says_its_environment_and_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = job_key(JOB)
    monkeypatch.setenv("XLA_FLAGS", "--xla_other=true")
    assert job_key(JOB) != key
    monkeypatch.undo()
    package = tmp_path / "shardwise"
    own = package / "check" / "compiling" / "cache.py"
    for path in (own, package / "runtime" / "program.py", package / "report" / "plan.py"):
        path.parent.mkdir(parents=True)
        path.write_text("")
    monkeypatch.setattr(cache, "__file__", str(own))
    first = job_key(JOB)
    (package / "report" / "plan.py").write_text("a = 1")
    assert job_key(JOB) == first
    (package / "runtime" / "program.py").write_text("a = 1")
    assert job_key(JOB) != first


def test_what_is_kept_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = replace(JOB, cache_path=str(tmp_path))
    write(tmp_path, job_key(kept), MADE)
    monkeypatch.setattr(process, "_compile", None)
    assert process.compile_job(kept) == replace(MADE, cached=True)


def test_a_spoilt_entry_is_as_good_as_none(tmp_path: Path) -> None:
    write(tmp_path, "a", MADE)
    (entry,) = (tmp_path / "compiled").iterdir()
    entry.write_bytes(entry.read_bytes()[:-20])
    assert read(tmp_path, "a") is None
    entry.write_bytes(encode(BadOption(option="x", text="y")))
    assert read(tmp_path, "a") is None


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    size = len(encode(MADE))
    for age, key in enumerate(["old", "older", "oldest"]):
        write(tmp_path, key, MADE)
        path = tmp_path / "compiled" / f"{key}.json"
        os.utime(path, (1000 - age, 1000 - age))
    write(tmp_path, "new", MADE, max_bytes=3 * size)
    assert [key for key in ("new", "old", "older", "oldest") if read(tmp_path, key)] == [
        "new",
        "old",
        "older",
    ]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "compiled").write_text("a file")
    write(tmp_path, "a", MADE)
    assert read(tmp_path, "a") is None


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_two_keys_are_equal_only_if_all_parts_are(one: list[str], other: list[str]) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)
