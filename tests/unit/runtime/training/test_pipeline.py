"""The compiled program of a pipeline: what a tick moves and computes."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.check.compiled_costs import AnalyzedProgram
from shardwise.check.options import CompileOptions
from shardwise.check.training import compile_step
from tests.unit.check.compilers import needs

N_STAGES, N_MICROBATCHES, LAYERS, TOKENS = 4, 8, 2, 64
MODEL = sw.ModelConfig.dense(
    n_layers=N_STAGES * LAYERS, d_model=384, d_ff=512, n_heads=3, n_kv_heads=3, vocab=1024
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("v5p:2x2x1", marks=needs("tpu")),
        pytest.param("h100:4", marks=needs("gpu")),
    ],
)
def program(request: pytest.FixtureRequest) -> AnalyzedProgram:
    """The program of a 1F1B pipeline; no other array has its number of slots and layers."""
    job = sw.Train(batch=N_MICROBATCHES, seq=TOKENS)
    fixed = {"pipe": N_STAGES, "schedule": "1f1b", "n_microbatches": N_MICROBATCHES}
    plan = sw.plan(MODEL, sw.hardware(request.param), job, fixed)
    step = compile_step(plan, CompileOptions(cache=False))
    assert step.program is not None
    return step.program


@pytest.mark.oracle
def test_no_tick_copies_the_saved_activations_of_all_slots(program: AnalyzedProgram) -> None:
    stack = (N_STAGES, LAYERS, 1, TOKENS)  # slots, layers, sequences, tokens
    written, copied = [], []
    for op in program.ops:
        if any(shape.dims[:4] == stack for shape in op.instruction.shapes):
            copies = op.instruction.opcode == "copy" and op.n_runs > 1
            (copied if copies else written).append(op.instruction.name)
    assert written
    assert copied == []


@pytest.mark.oracle
def test_the_unembedding_is_computed_once_a_microbatch(program: AnalyzedProgram) -> None:
    logits_flops = 2 * TOKENS * MODEL.d_model * MODEL.vocab
    flops = sum(
        n * op.n_runs for op in program.ops for name, n in op.cost.products if "unembed" in name
    )
    assert flops == 3 * N_MICROBATCHES * logits_flops
