"""What a plan may ask for and the runtime does not do is said before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import shardwise as sw
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.training.programs import unsupported
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.host import host
from tests.unit.runtime.model_cases import read

SIZES = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 91}


def refusals(folder: Path, seq: int) -> list[str]:
    """What is refused of GPT-2 with 64 positions on sequences so long."""
    job = sw.Train(batch=8, seq=seq)
    layout = Layout(mesh=Mesh(), micro_batch=8)
    return unsupported(rebuild(sw.evaluate(read("gpt2", SIZES), host(folder, 1), job, layout)))


def test_sequences_end_where_learned_positions_do(tmp_path: Path) -> None:
    assert refusals(tmp_path, 64) == []
    (said,) = refusals(tmp_path, 65)
    assert said.startswith("65 tokens a sequence: the model has 64 learned positions")
    assert "--batch Nx64" in said
