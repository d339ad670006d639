"""Engines of saved plans, on eight CPU devices.

`python -m tests.unit.runtime.scripts tests.unit.serve.planned_engines NAMES` plans how a small
model is served with these settings, serves it by the plan, and prints the output and that of a
plain loop as one JSON document.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.cli import main
from shardwise.cli.serving_model import read_model
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.launch import launched
from shardwise.serve.request import Generation, Sampling
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve
from tests.host import host
from tests.unit.serve.engines import FP32, Greedy, generate, one_device
from tests.unit.serve.model_files.tiny import write_folder

PROMPT, NEW = 24, 8
# Name -> (chips, what is fixed).
PLANS = {
    "2D": (8, "fsdp=4,tensor=2,weights=2d"),
    "2D, shared tokens": (8, "fsdp=2,tensor=4,weights=2d,kv=batch"),
    "tensor 4, shared tokens": (4, "tensor=4,kv=sequence"),
}


def served(n_chips: int, fixed: str, folder: Path) -> dict[str, Any]:
    """The output of the engine of a plan, and that of a plain loop."""
    model = write_folder(folder)
    host(folder, n_chips)
    plan = folder / "plan.json"
    lengths = ("--prompt", f"{PROMPT}", "--output", f"{NEW}", "--batch", "2")
    dtypes = ("--dtype", "fp32", "--kv-dtype", "fp32", "--compute", "fp32")
    machine = f"{folder / 'host.toml'}:{n_chips}"
    words = ["plan", f"{model}", machine, "--serve", *lengths, *dtypes, "--fix", fixed]
    assert main([*words, "-o", f"{plan}"]) == 0
    found, saved = read_model(f"{plan}", "")
    random = np.random.default_rng(0)
    prompt = random.integers(0, found.config.vocab, PROMPT).tolist()
    request = Generation(
        id="one", prompt=tuple(prompt), max_tokens=NEW, sampling=Sampling(temperature=0)
    )
    with launched(found, EngineOptions(sequences=1, pass_tokens=16), saved) as engine:
        (output,) = generate(engine, [request])
        layout = engine._programs.forward.engine.layout
    state = EngineState(
        config=found.config,
        job=Serve(context=PROMPT + NEW, **FP32),
        layout=ServeLayout(mesh=Mesh()),
        table=one_device(),
        batch=1,
    )
    plain = Greedy(found.config, found.weights.load_for(state), PROMPT + NEW)
    return {
        "output": output.ids,
        "plain": plain.continuation(prompt, NEW),
        "layout": [layout.weights, layout.kv, layout.mesh.fsdp, layout.mesh.tensor],
    }


if __name__ == "__main__":
    answers = {}
    for name in sys.argv[1:] or PLANS:
        with tempfile.TemporaryDirectory() as made:
            answers[name] = served(*PLANS[name], Path(made))
    print(json.dumps(answers))
