"""Exports are whole: other towers, names as they came, tokenizer files; and none loses a run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput, CheckFailed
from shardwise.models import count
from shardwise.runtime.weights.descriptions import describe, map_infos
from shardwise.runtime.weights.published_weights import published_model, save_weights
from shardwise.runtime.weights.safetensors import TensorInfo, read_tensors, write_tensors
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.train import checkpoint, pretrained, rescue
from shardwise.train.checks import check_inputs
from shardwise.train.options import CheckpointOptions, record_of
from shardwise.train.recipe import Recipe
from tests.host import host
from tests.unit.train.command import tokens

TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 264,
}
GEMMA = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": TEXT,
    "vision_config": {"hidden_size": 4},
}
TOWERS = {
    "vision_tower.layer.weight": np.arange(12, dtype=np.float16).reshape(3, 4),
    "multi_modal_projector.weight": np.ones((4, 16), np.float32),
}
STALE = "language_model.lm_head.weight"  # tied to the embedding, but in the file


def ones(config: sw.ModelConfig) -> Any:
    return map_infos(lambda info: jnp.ones(info.shape, jnp.float32), describe(config))


def published(folder: Path, prefix: str, towers: dict[str, Any]) -> sw.ModelConfig:
    """A multimodal model of ones, with `prefix` before the names of its language model."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GEMMA))
    config = sw.model(str(folder / "config.json"))
    save_weights(folder, config, ones(config))
    tensors = {}
    for name, tensor in read_tensors(folder).items():
        tensors[prefix.format(name, name.removeprefix("model."))] = np.array(tensor)
    tensors |= towers
    infos = [TensorInfo(name=n, shape=t.shape, dtype=t.dtype) for n, t in tensors.items()]
    write_tensors(folder, infos, lambda info: tensors[info.name])
    return config


@pytest.mark.parametrize("prefix", ["language_model.{0}", "model.language_model.{1}"])
def test_towers_are_kept_and_names_are_as_they_came(tmp_path: Path, prefix: str) -> None:
    stale = {STALE: np.zeros((264, 16), np.float32)}
    config = published(tmp_path / "in", prefix, TOWERS | stale)
    before = {name: np.array(tensor) for name, tensor in read_tensors(tmp_path / "in").items()}
    model = published_model(config, tmp_path / "in", with_towers=True)
    twos = map_infos(lambda info: jnp.full(info.shape, 2.0), describe(config))
    save_weights(tmp_path / "in", config, twos, model=model)  # over what is being read
    after = read_tensors(tmp_path / "in")
    assert after.keys() == before.keys() - {STALE}
    for name, tensor in after.items():
        if name in TOWERS:
            np.testing.assert_array_equal(tensor, TOWERS[name])
            assert tensor.dtype == TOWERS[name].dtype
        else:
            assert (np.asarray(tensor) == 2).all()


def case_of(folder: Path) -> Any:
    return SimpleNamespace(
        model=sw.model(str(folder / "config.json")), job=sw.Train(batch=1, seq=8)
    )


def test_a_model_without_its_towers_is_refused_before_training(tmp_path: Path) -> None:
    published(tmp_path / "in", "language_model.{0}", {})
    case = case_of(tmp_path / "in")
    for start in ("", str(tmp_path / "in")):
        with pytest.raises(BadInput, match=r"more than a language model \(vision_config\)"):
            pretrained.check_export(case, start, str(tmp_path / "out"))
    shutil.rmtree(tmp_path / "in")
    published(tmp_path / "in", "language_model.{0}", TOWERS)
    pretrained.check_export(case, str(tmp_path / "in"), str(tmp_path / "out"))


def test_a_resumed_run_has_the_towers_that_it_started_from(tmp_path: Path) -> None:
    model = published(tmp_path / "in", "language_model.{0}", TOWERS)
    layout = Layout(mesh=Mesh(), micro_batch=1)
    plan = sw.evaluate(model, host(tmp_path, 1), sw.Train(batch=1, seq=8), layout)
    tokens(tmp_path)
    saving = CheckpointOptions()
    recipe = Recipe(steps=1)
    inputs: dict[str, Any] = {"folders": [], "export": str(tmp_path / "out"), "log": ""}
    inputs |= {"data": "", "start": "", "resume": True}
    earlier = record_of(recipe, str(tmp_path / "data"), 0, str(tmp_path / "in"), saving, None)
    check_inputs(plan, recipe, earlier=earlier, **inputs)
    with pytest.raises(BadInput, match="more than a language model"):
        check_inputs(plan, recipe, earlier=replace(earlier, start=""), **inputs)


def test_an_export_without_room_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(tmp_path / "in", "language_model.{0}", TOWERS)
    usage = SimpleNamespace(free=20_000)
    monkeypatch.setattr(pretrained.shutil, "disk_usage", lambda path: usage)
    n_parameters = count.parameters(sw.model(str(tmp_path / "in"))).total
    n_bytes = 4 * n_parameters + sum(tower.nbytes for tower in TOWERS.values())
    with pytest.raises(BadFile, match=r"weights of .* do not fit in .*: 20.0 kB are free there"):
        pretrained.check_export(case_of(tmp_path / "in"), str(tmp_path / "in"), str(tmp_path))
    usage.free = n_bytes
    pretrained.check_export(case_of(tmp_path / "in"), str(tmp_path / "in"), str(tmp_path))
    usage.free -= 1
    with pytest.raises(BadFile, match="do not fit"):
        pretrained.check_export(case_of(tmp_path / "in"), str(tmp_path / "in"), str(tmp_path))


def test_what_serving_needs_is_copied(tmp_path: Path) -> None:
    wanted = ["chat_template.jinja", "generation_config.json", "merges.txt", "tokenizer.json"]
    wanted += ["tokenizer.model", "tokenizer_config.json", "vocab.json"]
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for name in [*wanted, "config.json", "model.safetensors", "README.md", "training_args.bin"]:
        (tmp_path / "in" / name).write_text(name)
    copy = pretrained._copy_companions
    assert copy(str(tmp_path / "in" / "config.json"), tmp_path / "out") == wanted
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == wanted
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokenizer.json"
    assert copy(str(tmp_path / "out"), tmp_path / "out") == []
    assert copy("", tmp_path / "out") == copy("llama3-8b", tmp_path / "out") == []


class Saved:
    """Checkpoints that are written, or not."""

    def __init__(self, folder: Any, on_note: Any, complete: bool = True) -> None:
        self.folder = folder
        self.complete = complete

    def close(self) -> bool:
        return self.complete


def run_that_cannot_export(
    folder: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: Any, last: int | None
) -> str:
    """What a run of four steps says whose export fails."""

    def fail(*arguments: Any) -> None:
        raise BadFile("out cannot be written: No space left on device.")

    monkeypatch.setattr(pretrained, "export_weights", fail)
    monkeypatch.setattr(checkpoint, "Checkpoints", Saved)
    model = sw.ModelConfig.dense(n_layers=1, d_model=32, d_ff=64, n_heads=4, vocab=261)
    plan = sw.plan(model, host(folder, 1), sw.Train(batch=8, seq=16))
    hooks = SimpleNamespace(on_note=print)
    steps: list[int] = []
    loop: Any = SimpleNamespace(
        **{"train_step": None, "state": None, "step": 4, "plan": plan, "hooks": hooks},
        **{"checkpoints": checkpoints, "save": lambda: steps.append(4)},
        order=SimpleNamespace(sets=[None]),
    )
    record = record_of(Recipe(steps=4), "data", 0, "", CheckpointOptions(), None)
    with pytest.raises(CheckFailed, match="No space left on device") as error:
        rescue.export_or_save(str(folder / "out"), loop, record, last)
    assert steps == ([] if checkpoints else [4])
    return error.value.problems[-1]


def test_a_failed_export_says_where_the_state_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run_that_cannot_export(tmp_path, monkeypatch, Saved("ck", None), 4)
    assert said.startswith("the state of step 4 is in ck. To export it later: shardwise train ")
    assert "--checkpoint ck --resume --export FOLDER" in said
    said = run_that_cannot_export(tmp_path, monkeypatch, Saved("ck", None), 2)
    assert said == "the state of step 4 could not be saved either."


def test_a_failed_export_without_checkpoints_saves_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run_that_cannot_export(tmp_path, monkeypatch, None, None)
    (folder,) = tmp_path.glob("out-state-*")
    assert f"the state of step 4 is in {folder}. " in said
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "run.json"]
