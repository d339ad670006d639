"""`hw measure` finds every rate that a plan of training needs, in a program of each kind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.oracle

SCRIPT = """
import json
from dataclasses import replace
from shardwise.measure import machine, memory, sizes, timing, transfers
timing.MAX_ROUNDS, timing.TRIAL_S = 1, 0.0
products = ((64, 32, 48), (128, 32, 32), (32, 64, 64), (96, 96, 16))
joined = (1 << 6, 1 << 10, 1 << 12)
sizes.CPU = replace(sizes.CPU, products=products, scores=1, update=(64, 64), joined=joined)
memory.NUMBERS = 1 << 16
memory.LOOP_KIB = 64
transfers.NUMBERS = (1 << 10, 1 << 16)
transfers.FILE_BYTES = 1 << 20
found = machine.measure(2)
print(json.dumps({"figures": dict(found.figures), "sources": dict(found.sources)}))
"""


def test_every_figure_of_training_is_measured() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    figures = found["figures"]
    assert all(value > 0 for value in figures.values())
    for path in (
        *("hbm.bandwidth", "hbm.capacity", "peak.fp32", "peak.bf16", "node.egress"),
        *("training.step", "training.layer", "training.update", "training.loss"),
        *("training.lookup", "training.fp32_D_forward", "training.bf16_F_backward"),
        *("training.fp32_attention_backward_512", "training.bf16_attention_forward_128"),
        *("memory.64KiB_1", "memory.65536KiB_4", "transfers.put", "transfers.loader_start"),
        *("transfers.dispatch", "transfers.disk_read", "transfers.disk_write"),
    ):
        assert path in figures
    products = {path for path in figures if path.startswith("training.fp32_weight")}
    assert products
    assert all("fitted to 4 operations" in found["sources"][path] for path in products)
    kinds = {path.split(".")[1].rpartition("_2")[0] for path in figures if "collectives" in path}
    assert kinds == {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"}
