"""Runs of a tiny model in a process with eight CPU devices, as `command.printed` starts it.

`python -m tests.unit.train.drive FOLDER PART` prints what came of each run of a part (`short` or
`long`) as one JSON document.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import shardwise as sw
from shardwise.errors import ShardwiseError
from shardwise.models import LayerGroup, Moe
from shardwise.models.numerics import Routing
from shardwise.runtime.tokenizer import ByteTokenizer
from shardwise.runtime.training.optimizers import WHOLE_ARRAY
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.train import guard, sources
from shardwise.train.checkpoint import Checkpoints, array_types
from shardwise.train.metrics import Hooks, StepRecord
from shardwise.train.options import CheckpointOptions
from shardwise.train.recipe import ON_BAD, Recipe
from shardwise.train.tokenize import tokenize
from tests.host import host
from tests.xla import share_programs

MODEL = sw.ModelConfig.dense(n_layers=4, d_model=32, d_ff=64, n_heads=4, n_kv_heads=2, vocab=261)
EVEN = replace(MODEL, vocab=264)  # which two chips divide
JOB = sw.Train(batch=8, seq=16, weights="fp32", compute="fp32", gradients="fp32", moments="fp32")
LAYOUTS = {
    "one": Layout(mesh=Mesh(), micro_batch=8),
    "eight": Layout(
        mesh=Mesh(data=2, fsdp=2, tensor=2), micro_batch=2, zero=3, sequence_parallel=True
    ),
    "outside": Layout(
        mesh=Mesh(data=2, fsdp=2, tensor=2),
        micro_batch=2,
        zero=3,
        sequence_parallel=True,
        offload=("optimizer", "activations"),
    ),
    # Stages that hold layers in an order of their own; the others fill up the vocabulary.
    "stages": Layout(
        mesh=Mesh(pipe=2, data=2), micro_batch=1, n_microbatches=4, schedule="zb-v", zero=1
    ),
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 261,
}
STEPS, HALF = 4, 2


def plan(folder: Path, name: str) -> sw.Plan:
    """The plan of a layout."""
    layout = LAYOUTS[name]
    return sw.evaluate(MODEL, host(folder, layout.mesh.n_chips), JOB, layout)


def tokens(folder: Path) -> str:
    """A folder of tokens."""
    text = folder / "text"
    text.mkdir()
    for i in range(8):
        (text / f"{i}.txt").write_text(f"line {i} of some text\n" * 40)
    found = sources.find_sources([str(text)], "*", "text")
    tokenize(found, ByteTokenizer(), str(folder / "tokens"))
    return str(folder / "tokens")


def refused(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call that has to fail says."""
    try:
        call()
    except ShardwiseError as error:
        return {"kind": type(error).__name__, "code": error.exit_code, "said": str(error)}
    return {"kind": "nothing"}


class Told:
    """The records and notes of a run, and the run."""

    def __init__(
        self, plan: sw.Plan, data: str, recipe: Recipe, saving: CheckpointOptions, **more: Any
    ):
        self.records: list[StepRecord] = []
        self.notes: list[str] = []
        hooks = Hooks(on_step=self.records.append, on_note=self.notes.append)
        self.run = None
        self.failed = refused(lambda: self._run(plan, data, recipe, saving, hooks, more))

    def _run(self, plan: Any, data: Any, recipe: Any, saving: Any, hooks: Any, more: Any) -> None:
        self.run = sw.train(plan, data=data, recipe=recipe, saving=saving, hooks=hooks, **more)

    def document(self) -> dict[str, Any]:
        """What a test looks at."""
        return {
            "losses": [r.loss for r in self.records],
            "norms": [r.grad_norm for r in self.records],
            "bad": [r.step for r in self.records if r.bad],
            "notes": self.notes,
            "failed": self.failed,
            "run": self.run and {"first": self.run.first, "done": self.run.done},
            "sample": self.run and self.run.sample,
        }


def layouts(folder: Path, data: str) -> dict[str, Any]:
    """The same steps on eight devices and on one; broken off and gone on with, also elsewhere."""
    recipe = Recipe(steps=STEPS, rate=0.01, warmup=1, clip=0.5)
    made = {name: plan(folder, name) for name in LAYOUTS}
    at = folder / "eight"
    fresh = CheckpointOptions(folder=str(at), every=HALF)
    again = CheckpointOptions(folder=str(at), resume=True)
    eight = Told(made["eight"], data, recipe, fresh, sample="line")
    found = {
        "eight": eight.document(),
        "one": Told(made["one"], data, recipe, CheckpointOptions()).document(),
    }
    through = _fingerprints(at / str(STEPS))
    shutil.rmtree(at / str(STEPS))
    found["again"] = Told(made["eight"], data, recipe, again).document()
    resumed = _fingerprints(at / str(STEPS))
    found["bits"] = {"arrays": len(through), "equal": through == resumed}
    shutil.rmtree(at / str(STEPS))
    found["reordered"] = Told(made["stages"], data, recipe, again, seed=1).failed
    steps = CheckpointOptions(folder=str(at), every=1, resume=True)
    found["stages"] = Told(made["stages"], data, recipe, steps).document()
    shutil.rmtree(at / str(STEPS))
    found["back"] = Told(made["one"], data, recipe, again).document()
    found["unasked"] = Told(made["one"], data, recipe, fresh).failed
    return found


def partitioned(folder: Path, data: str) -> dict[str, Any]:
    """The same steps, gone on with by the compiler's collectives, and with state in host memory."""
    recipe = Recipe(steps=STEPS, rate=0.01, warmup=1, clip=0.5)
    eight, at = plan(folder, "eight"), folder / "eight"
    found = {
        "eight": Told(
            eight, data, recipe, CheckpointOptions(folder=str(at), every=HALF)
        ).document(),
        "one": Told(plan(folder, "one"), data, recipe, CheckpointOptions()).document(),
    }
    through = _fingerprints(at / str(STEPS))
    shutil.rmtree(at / str(STEPS))
    other, again = (
        replace(recipe, collectives="compiler"),
        CheckpointOptions(folder=str(at), resume=True),
    )
    found["partitioned"] = Told(eight, data, other, again).document()
    found["outside"] = outside(folder, data, recipe, through)
    return found


def optimizer(folder: Path, data: str, name: str) -> dict[str, Any]:
    """Steps under one that reads whole arrays, in one run and broken off."""
    job, at = replace(JOB, optimizer=name), folder / name
    made = sw.evaluate(EVEN, host(folder, 2), job, Layout(mesh=Mesh(fsdp=2), micro_batch=4, zero=3))
    recipe = Recipe(steps=STEPS, rate=0.01)
    found = {
        "through": Told(
            made, data, recipe, CheckpointOptions(folder=str(at), every=HALF)
        ).document()
    }
    through = _fingerprints(at / str(STEPS))
    shutil.rmtree(at / str(STEPS))
    found["again"] = Told(
        made, data, recipe, CheckpointOptions(folder=str(at), resume=True)
    ).document()
    return found | {"equal": through == _fingerprints(at / str(STEPS))}


def outside(folder: Path, data: str, recipe: Recipe, through: dict[str, int]) -> dict[str, Any]:
    """State in host memory, broken off and gone on with, there and in stages.

    Args:
        through: bits of the same layout without it.
    """
    at = folder / "outside"
    fresh = CheckpointOptions(folder=str(at), every=HALF)
    again = CheckpointOptions(folder=str(at), resume=True)
    made = plan(folder, "outside")
    found = {"whole": Told(made, data, recipe, fresh).document()}
    found["bits"] = [_fingerprints(at / str(STEPS)) == through]
    shutil.rmtree(at / str(STEPS))
    found["again"] = Told(made, data, recipe, again).document()
    found["bits"] += [_fingerprints(at / str(STEPS)) == through]
    shutil.rmtree(at / str(STEPS))
    layout = replace(LAYOUTS["stages"], offload=("optimizer",))
    stages = sw.evaluate(MODEL, host(folder, layout.mesh.n_chips), JOB, layout)
    found["stages"] = Told(stages, data, recipe, again).document()
    return found


def published(folder: Path, data: str) -> dict[str, Any]:
    """Weights written as they are published, and read again by another layout."""
    config = folder / "gpt2" / "config.json"  # a preset has the name of this folder
    config.parent.mkdir()
    config.write_text(json.dumps(LLAMA))
    model, out, again = sw.model(str(config)), folder / "out", folder / "again"
    out.mkdir()  # with what another model left
    (out / "model-00001-of-00002.safetensors").touch()
    (out / "model.safetensors.index.json").write_text("{}")
    plan = sw.evaluate(model, host(folder, 8), JOB, LAYOUTS["eight"])
    recipe = Recipe(steps=2, rate=0.01, schedule="constant")
    found = {"out": Told(plan, data, recipe, CheckpointOptions(), export=str(out)).document()}
    plan = sw.evaluate(sw.model(str(out)), host(folder, 4), JOB, LAYOUTS["stages"])
    still = Recipe(steps=1, rate=1e-30, schedule="constant")
    more = {"start": str(out), "export": str(again)}
    found["again"] = Told(plan, data, still, CheckpointOptions(), **more).document()
    files = [(at / "model.safetensors").read_bytes() for at in (out, again)]
    found["same"] = {"bytes": len(files[0]), "equal": files[0] == files[1]}
    over = {"start": str(again), "export": str(again)}
    found["over"] = Told(plan, data, still, CheckpointOptions(), **over).document()
    found["same"]["over"] = files[0] == (again / "model.safetensors").read_bytes()
    found["files"] = [sorted(path.name for path in at.iterdir()) for at in (out, again)]
    found["config"] = [json.loads((at / "config.json").read_text()) == LLAMA for at in (out, again)]
    other = sw.evaluate(MODEL, host(folder, 1), JOB, LAYOUTS["one"])
    wrong = sw.evaluate(sw.model(f"{config},d_ff=128"), host(folder, 1), JOB, LAYOUTS["one"])
    found["family"] = refused(lambda: sw.train(other, data=data, steps=1, export=str(out)))
    found["model"] = refused(lambda: sw.train(wrong, data=data, steps=1, start=str(out)))
    return found


def _fingerprints(checkpoint: Path) -> dict[str, int]:
    page = json.loads((checkpoint / "about" / "metadata").read_text())
    found: dict[str, int] = page["fingerprints"]
    return found


def experts(folder: Path, data: str) -> dict[str, Any]:
    """Experts with room for all tokens, for an even share, and for hardly any."""
    ffn = Moe(n_experts=4, experts_per_token=2, d_ff=16, routing=Routing(aux_loss=0.02))
    layer = replace(MODEL.groups[0].layer, ffn=ffn)
    model = replace(MODEL, groups=(LayerGroup(layer=layer, count=2),))
    made = sw.evaluate(model, host(folder, 2), JOB, Layout(mesh=Mesh(expert=2), micro_batch=4))
    return {
        str(room): Told(made, data, Recipe(steps=2, capacity=room), CheckpointOptions()).document()
        for room in (None, 4.0, 1.0, 0.01)
    }


def bad(folder: Path, data: str) -> dict[str, Any]:
    """A rate so high that the loss jumps, and what is done about it."""
    guard.MIN_GOOD_STEPS = 2
    found: dict[str, Any] = {}
    for way in ON_BAD:
        recipe = Recipe(steps=8, rate=0.5, schedule="constant", clip=None, spike=0.05, on_bad=way)
        log = folder / f"{way}.jsonl"
        told = Told(plan(folder, "one"), data, recipe, CheckpointOptions(), log=str(log))
        found[way] = told.document()
        found[way]["log"] = [json.loads(line) for line in log.read_text().splitlines()]
    return found


def not_numbers() -> dict[str, Any]:
    """An optimizer given gradients and losses that are no numbers."""
    import jax
    import jax.numpy as jnp
    import optax

    made = guard.guard(optax.adam(0.1), optax.tree.norm, Recipe(steps=3, clip=1.0))
    weights = {"w": jnp.ones(2)}
    usual, nan = {"w": jnp.array([3.0, 4.0])}, {"w": jnp.array([jnp.nan, 4.0])}
    first, state = made.update(usual, made.init(weights), weights, value=jnp.float32(2.0))
    found = {"first": [float(x) for x in first["w"]], "norm": float(state.norm)}
    for name, gradients, loss in (("gradient", nan, 2.0), ("loss", usual, jnp.inf)):
        updates, after = made.update(gradients, state, weights, value=jnp.float32(loss))
        same = jax.tree.map(lambda a, b: bool((a == b).all()), after.inner, state.inner)
        found[name] = {
            "updates": [float(x) for x in updates["w"]],
            "counts": [int(after.good), int(after.bad)],
            "usual": float(after.usual),
            "same": all(jax.tree.leaves(same)),
        }
    return found


def saved(folder: Path) -> dict[str, Any]:
    """Checkpoints on a disk that is full, in files that changed, in a folder that is none."""
    import jax
    import jax.numpy as jnp

    state = {"w": jnp.arange(4096.0).reshape(64, 64), "n": jnp.int32(3)}
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    about = {"order": {"seed": 0}, "arrays": array_types(state)}
    notes: list[str] = []
    held = Checkpoints(str(folder / "held"), notes.append)
    held.save(1, state, about)
    held.save(2, state, about)
    held.wait()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    held.save(3, state, about)
    whole = held.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    found = {"full": list(notes), "whole": whole, "after_full": held.steps}
    held.save(4, state, about)
    held.close()
    _flip(folder / "held" / "4")
    notes.clear()
    held = Checkpoints(str(folder / "held"), notes.append)
    taken = held.restore(shapes, {"seed": 0})
    same = taken is not None and bool((taken.state["w"] == state["w"]).all())
    found |= {"damaged": list(notes), "taken": taken and taken.step, "same": same}
    notes.clear()
    held.save(3, state, about)
    held.save(4, state, about)
    held.wait()
    found["after_damaged"] = [held.steps, list(notes)]
    more = {**shapes, "m": shapes["w"]}
    found["model"] = refused(lambda: held.restore(more, {"seed": 0}))
    held.close()
    (folder / "file").write_text("")
    found["no_folder"] = refused(lambda: Checkpoints(str(folder / "file" / "x"), notes.append))
    return found


def _flip(folder: Path) -> None:
    """Change one bit of the largest file."""
    path = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def elsewhere(folder: Path, data: str) -> dict[str, Any]:
    """Plans and data that this process cannot run."""
    tpu = sw.plan(MODEL, sw.hardware("v5e:2x2"), sw.Train(batch=8, seq=16))
    narrow = sw.evaluate(replace(MODEL, vocab=256), host(folder, 1), JOB, LAYOUTS["one"])
    crowded = Recipe(steps=1, capacity=1.0)
    means, halves = replace(JOB, optimizer="adafactor"), Layout(mesh=Mesh(tensor=2), micro_batch=8)
    filled = sw.evaluate(MODEL, host(folder, 2), means, halves)
    return {
        "tpu": refused(lambda: sw.train(tpu, data=data, steps=1)),
        "vocab": refused(lambda: sw.train(narrow, data=data, steps=1)),
        "long": refused(lambda: sw.train(narrow, data=data)),
        "capacity": refused(lambda: sw.train(narrow, data=data, recipe=crowded)),
        "filled": refused(lambda: sw.train(filled, data=data, steps=1)),
    }


def unsampled(folder: Path, data: str) -> dict[str, Any]:
    """Runs that cannot end with the text that is asked for."""
    ways = {
        "long": ("one", Recipe(steps=1), "x" * JOB.seq),
        "stages": ("stages", Recipe(steps=1), "line"),
        "compiler": ("eight", Recipe(steps=1, collectives="compiler"), "line"),
    }
    return {
        way: Told(plan(folder, name), data, recipe, CheckpointOptions(), sample=text).document()
        for way, (name, recipe, text) in ways.items()
    }


def short(folder: Path, data: str) -> dict[str, Any]:
    """What every run of the tests looks at."""
    found = layouts(folder, data) | {"elsewhere": elsewhere(folder, data)}
    found |= {"published": published(folder, data), "unsampled": unsampled(folder, data)}
    return found | {"ways": bad(folder, data), "not_numbers": not_numbers(), "saved": saved(folder)}


def long(folder: Path, data: str) -> dict[str, Any]:
    """What compiles many programs more."""
    found = partitioned(folder, data) | {"experts": experts(folder, data)}
    return found | {name: optimizer(folder, data, name) for name in WHOLE_ARRAY}


PARTS = {"short": short, "long": long}


def main(folder: Path, part: str) -> None:
    """One part. Its runs of one plan share a compile."""
    share_programs()
    print(json.dumps(PARTS[part](folder, tokens(folder))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
