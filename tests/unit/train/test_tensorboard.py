"""Event files of TensorBoard, read back."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.errors import BadFile, MissingExtra
from shardwise.train.metrics import Hooks, StepRecord
from shardwise.train.tensorboard import SCALARS, EventFile, with_events

RECORD = StepRecord(
    step=1,
    steps=3,
    loss=5.5,
    grad_norm=2.0,
    learning_rate=0.25,
    bad=False,
    step_s=0.5,
    lower=0.25,
    upper=1.0,
    tokens_per_s=4096.0,
    mfu=0.125,
    memory_bytes=None,
    eta_s=1.0,
)


def test_without_its_package_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtra, match=r"shardwise\[tensorboard\]"):
        EventFile(str(tmp_path), print)


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match="file"):
        EventFile(str(tmp_path / "file" / "board"), print)


def test_what_a_run_tells_is_in_the_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    told: list[StepRecord] = []
    board = EventFile(str(tmp_path / "board"), print)
    hooks = with_events(board, Hooks(on_step=told.append))
    records = [RECORD, replace(RECORD, step=2, loss=4.5, memory_bytes=1e9)]
    for record in records:
        hooks.on_step(record)
    board.close()
    assert told == records
    (path,) = (tmp_path / "board").iterdir()
    found = read(path)
    assert found["loss"] == [(1, 5.5), (2, 4.5)]
    assert found["memory_bytes"] == [(2, 1e9)]
    assert set(found) == set(SCALARS)
    assert found["tokens_per_s"] == [(1, 4096.0), (2, 4096.0)]


def test_a_full_disk_is_said_once_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writer = pytest.importorskip("tensorboardX.event_file_writer")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    board = EventFile(str(tmp_path), said.append)
    monkeypatch.setattr(writer.EventsWriter, "flush", full)
    board.step(RECORD)
    board.step(RECORD)
    monkeypatch.undo()
    board.close()
    assert said == [f"{tmp_path}: No space left on device; no further steps are written there."]


def read(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars of an event file: records of a length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, at = path.read_bytes(), 0
    found: dict[str, list[tuple[int, float]]] = {}
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + size])
        at += 12 + size + 4
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found
