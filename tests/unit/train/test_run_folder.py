"""The folder of a run: one run at a time, and how it was started, which a resumed run takes up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.cli.verbs.train import chosen_recipe
from shardwise.errors import BadFile, BadInput
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.train.options import KEEP, CheckpointOptions, default_recipe, record_of
from shardwise.train.recipe import Recipe
from shardwise.train.run_folder import (
    LOCK_FILE,
    PLAN_FILE,
    RECORD_FILE,
    changes,
    locked,
    read_record,
    write_record,
)
from tests.conftest import ROOT
from tests.host import host
from tests.unit.train.command import ended, environment, started, tokens

MODEL = sw.ModelConfig.dense(n_layers=1, d_model=32, d_ff=64, n_heads=4, vocab=264)
RECIPE = Recipe(steps=20, rate=1e-3, schedule="wsd", clip=None, spike=2.0)
SAVING = CheckpointOptions(folder="saved", every=5, keep=4)
HOLDER = """
import sys, time
from shardwise.train.run_folder import locked
with locked(sys.argv[1], is_first=True, on_note=print):
    print("holds", flush=True)
    time.sleep(600)
"""


def planned(folder: Path, batch: int = 8) -> sw.Plan:
    layout = Layout(mesh=Mesh(), micro_batch=batch)
    return sw.evaluate(MODEL, host(folder, 1), sw.Train(batch=batch, seq=16, tokens=1e4), layout)


def no_note(text: str) -> None:
    raise AssertionError(text)


def test_a_second_run_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder],
        env=environment(ROOT / "src"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "holds\n"
        with (
            pytest.raises(BadInput, match=f"in use by another run: process {holder.pid} on "),
            locked(folder, is_first=True, on_note=no_note),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert (tmp_path / "saved" / LOCK_FILE).read_text().startswith(f"process {holder.pid} ")
    with locked(folder, is_first=True, on_note=no_note):  # the lock of the killed one is free
        pass
    with locked(folder, is_first=True, on_note=no_note):
        pass


def test_a_record_comes_back(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    record = record_of(RECIPE, "data=0.7,text", 3, "published", SAVING, None, "weights")
    assert record.export == str(Path("weights").absolute())
    assert (record.every, record.keep) == (5, 4)
    assert record.start == str(Path("published").absolute())
    assert record.data == f"{Path('data').absolute()}=0.7,{Path('text').absolute()}=1"
    assert {"shardwise", "jax", "python"} <= record.versions.keys()
    assert read_record(str(tmp_path)) is None
    write_record(str(tmp_path), record, plan)
    assert read_record(str(tmp_path)) == record
    assert changes(str(tmp_path), record, record, plan) == []
    assert sw.load(str(tmp_path / PLAN_FILE)) == plan
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "shardwise.run/0"}', '{"recipe": {}}'])
def test_what_is_not_a_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD_FILE).write_text(text)
    with pytest.raises(BadFile, match=r"run\.json"):
        read_record(str(tmp_path))


def test_changes_are_told(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    earlier = record_of(RECIPE, "data", 0, "", SAVING, None)
    write_record(str(tmp_path), replace(earlier, versions={"jax": "0.1"}), plan)
    before = read_record(str(tmp_path))
    assert before is not None
    recipe = replace(RECIPE, rate=2e-3, clip=1.0)
    now = replace(before, recipe=recipe, versions={"jax": "0.2"})
    assert changes(str(tmp_path), now, before, planned(tmp_path, batch=4)) == [
        "rate 0.002 (before: 0.001)",
        "clip 1 (before: none)",
        "jax 0.2 (before: 0.1)",
        "another plan (other workload, strategy)",
    ]


def test_a_resumed_run_takes_up_what_is_not_given() -> None:
    earlier = record_of(RECIPE, "data", 3, "published", SAVING, None)
    saving = CheckpointOptions(folder="saved", resume=True)
    assert record_of(RECIPE, "", None, "", saving, earlier) == earlier
    other = CheckpointOptions(folder="saved", every=2, keep=1, resume=True)
    record = record_of(RECIPE, earlier.data, 3, "", other, earlier)
    assert (record.every, record.keep, record.start) == (2, 1, earlier.start)
    new = record_of(RECIPE, "data", 0, "", CheckpointOptions(folder="saved"), None)
    assert (new.every, new.keep, new.start) == (0, KEEP, "")


def test_the_recipe_of_a_resumed_run(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    earlier = record_of(RECIPE, "data", 3, "", SAVING, None)
    assert default_recipe(plan, earlier, None) == RECIPE
    assert default_recipe(plan, earlier, 30) == replace(RECIPE, steps=30)
    assert default_recipe(plan, None, None) == Recipe(steps=round(1e4 / 128))
    settings = dict.fromkeys(asdict(RECIPE))
    assert chosen_recipe(plan, earlier, settings) == RECIPE
    assert chosen_recipe(plan, None, settings) == Recipe(steps=round(1e4 / 128))
    given = settings | {"rate": 0.5, "spike": 0.0}
    assert chosen_recipe(plan, earlier, given) == replace(RECIPE, rate=0.5, spike=None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"folder": "x", "keep": 0}, "--keep 0 is below 1"),
        ({"folder": "x", "every": -1}, "--checkpoint-every -1 is below 0"),
        ({"keep": 3}, "need --checkpoint FOLDER"),
        ({"resume": True}, "need --checkpoint FOLDER"),
    ],
)
def test_options_that_are_not_possible(options: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        CheckpointOptions(**options)  # type: ignore[arg-type]


def test_the_record_is_json_that_people_read(tmp_path: Path) -> None:
    record = record_of(RECIPE, "data", 3, "", SAVING, None)
    write_record(str(tmp_path), record, planned(tmp_path))
    document = json.loads((tmp_path / RECORD_FILE).read_text())
    assert document["schema"] == "shardwise.run/1"
    assert document["recipe"]["schedule"] == "wsd"
    assert document["command"].endswith(" ".join(sys.argv[-1:]))


@pytest.mark.oracle
def test_a_resumed_run_writes_the_export_that_it_was_started_with(tmp_path: Path) -> None:
    model = sw.model("llama3.2-1b,n_layers=1,d_model=32,d_ff=64,n_heads=4,n_kv_heads=4,vocab=264")
    job = sw.Train(batch=2, seq=16)
    sw.plan(model, host(tmp_path, 1), job).save(str(tmp_path / "plan.json"))
    tokens(tmp_path)
    saving = ["--checkpoint", "saved", "--steps"]
    ended(started(tmp_path, "plan.json", *saving, "2", "--export", "out"))
    shutil.rmtree(tmp_path / "out")
    ended(started(tmp_path, "plan.json", *saving, "3", "--resume"))
    assert list((tmp_path / "out").glob("*.safetensors"))
