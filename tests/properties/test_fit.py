"""Whatever `fit` names, a plan of it fits: the machine, and the number of sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import DoesNotFit, NoPlan
from shardwise.hardware import parse_system
from shardwise.search.fit import SEQUENCES_PER_CHIP, fit_on
from shardwise.search.machines import machines_of

MODELS = ["llama3.2-1b", "llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"]
CHIPS = ["v5e", "v5p", "v6e", "h100", "a100-40g", "rtx-4090", "m1-max", "gb200"]
DTYPES = ["bf16", "fp8", "int4"]


@settings(max_examples=10)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(CHIPS),
    st.sampled_from(DTYPES),
    st.sampled_from([2048, 8192, 32768]),
    st.sampled_from([None, 1, 3, 64]),
)
@example("llama3-70b", "h100", "bf16", 8192, None)
def test_a_machine_for_serving(
    name: str, chip: str, dtype: str, context: int, batch: int | None
) -> None:
    model = sw.model(name)
    job = sw.Serve(context=context, weights=dtype, kv=dtype, compute="bf16", batch=batch)
    try:
        found = sw.fit(model, sw.chip(chip), job)
    except DoesNotFit:
        return
    system = parse_system(found.system)
    assert sw.plan(model, system, job).estimate.decode.max_batch >= 1
    full = sw.plan(model, system, replace(job, batch=found.sequences))
    assert full.estimate.decode.batch * full.strategy.servers.count == found.sequences
    _smaller_are_refused(model, sw.chip(chip), job, found.n_chips)


@settings(max_examples=5)
@given(st.sampled_from(MODELS[:4]), st.sampled_from(CHIPS), st.sampled_from([2048, 8192]))
@example("llama3-8b", "v5e", 8192)
@pytest.mark.oracle
def test_a_machine_for_training(name: str, chip: str, seq: int) -> None:
    model = sw.model(name)
    try:
        found = sw.fit(model, sw.chip(chip), sw.Train(batch=1, seq=seq))
    except DoesNotFit:
        return
    job = sw.Train(batch=SEQUENCES_PER_CHIP * found.n_chips, seq=seq)
    sw.plan(model, parse_system(found.system), job)  # raises DoesNotFit if it does not
    _smaller_are_refused(model, sw.chip(chip), job, found.n_chips)


def _smaller_are_refused(
    model: sw.ModelConfig, chip: sw.Chip, job: sw.Train | sw.Serve, n_chips: int
) -> None:
    """The next smaller machine has no plan, and `fit` says so."""
    smaller = [system for system in machines_of(chip) if system.n_chips < n_chips][-1:]
    for system in smaller:
        assert not fit_on(model, system, job).fits
        if isinstance(job, sw.Train):
            job = replace(job, batch=SEQUENCES_PER_CHIP * system.n_chips)
        with pytest.raises(NoPlan):
            sw.plan(model, system, job)
