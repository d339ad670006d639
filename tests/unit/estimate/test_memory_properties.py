"""What holds for the memory of any layout."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.estimate.chip_memory import Memory
from shardwise.estimate.training.memory.framework import planned_framework
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.models import load
from shardwise.ops.program import training_step
from shardwise.strategy.layout import Form, Layout, Layouts, data_shards, table
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER
from shardwise.workload import Train

MODELS = ("llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2")
PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache", "other")
SELECTIVE = ("norms", "attention", "activation")
JOB = Train(batch=64, seq=512, gradients="fp32", master="fp32")

powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A layout of any form."""
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    schedule = draw(st.sampled_from(["none", "1f1b", "gpipe", "interleaved", "zb-h1", "dualpipe"]))
    tensor = draw(powers)
    return Layout(
        mesh=Mesh(
            data=draw(powers),
            fsdp=draw(powers) if zero == 3 else 1,
            tensor=tensor,
            context=draw(powers),
            expert=draw(powers),
            pipe=1 if schedule == "none" else draw(st.sampled_from([2, 4])),
        ),
        zero=zero,
        schedule=schedule,
        virtual=2 if schedule == "interleaved" else 1,
        micro_batch=draw(powers),
        n_microbatches=8,
        recomputed=draw(st.sampled_from([(), SELECTIVE, (LAYER,)])),
        sequence_parallel=tensor > 1 and draw(st.booleans()),
    )


def memory(name: str, split: Layout | Layouts, kind: str = "cpu") -> Memory:
    config, batch = load(name), split.micro_batch * data_shards(split.sizes)
    step = training_step(config, batch, JOB.seq, table(split), remat=split.policy)
    return step_memory(config, JOB, step, split, 80e9, planned_framework(kind))


def twice(layout: Layout, role: str) -> Layout:
    sizes = {**layout.sizes, role: 2 * layout.sizes[role]}
    return dataclasses.replace(layout, mesh=Mesh(**sizes))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(MODELS), layouts())
def test_parts_sum_to_the_total(name: str, layout: Layout) -> None:
    found = memory(name, layout)
    parts = [getattr(found, part) for part in PARTS]
    assert all(part >= 0 for part in parts)
    assert found.total == pytest.approx(sum(parts), rel=1e-12)
    assert found.fits == (found.total + found.margin <= 80e9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(MODELS), layouts(), st.sampled_from(["tensor", "fsdp", "pipe", "expert"]))
def test_more_chips_never_hold_more_weights(name: str, layout: Layout, role: str) -> None:
    if (role == "fsdp" and layout.zero < 3) or (role == "pipe" and layout.schedule == "none"):
        return
    one, two = memory(name, layout), memory(name, twice(layout, role))
    # A pipeline's fullest stage may be the other one: its weights are not what decides.
    if role == "pipe" and one.weights < two.weights:
        assert two.total <= one.total
        return
    assert two.weights <= one.weights * (1 + 1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(MODELS), layouts())
def test_less_is_kept_the_more_runs_again(name: str, layout: Layout) -> None:
    kept = []
    for parts in ((), SELECTIVE, (LAYER,)):
        found = memory(name, dataclasses.replace(layout, recomputed=parts))
        kept.append(float(found.total))
    assert kept[0] >= kept[1] * (1 - 1e-12)
    assert kept[1] >= kept[2] * (1 - 1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(MODELS), layouts(), st.sampled_from(["cpu", "gpu", "tpu"]))
def test_more_chunks_of_the_loss_never_hold_more(name: str, layout: Layout, kind: str) -> None:
    """On a TPU two chunks may hold more than one: the gathered unembedding and its gradient meet
    from the first chunk to the last, and both in the place of one."""
    held = [
        float(memory(name, dataclasses.replace(layout, loss_chunks=n), kind).total)
        for n in (1, 2, 4, 16)
    ]
    if kind == "tpu":
        held = held[1:]
    assert held == sorted(held, reverse=True)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(MODELS), powers, powers, powers)
def test_zero_holds_less_from_stage_to_stage(
    name: str, ranks: int, tensor: int, context: int
) -> None:
    state = []
    for zero in range(4):
        ways = {"fsdp": ranks} if zero == 3 else {"data": ranks}
        layout = Layout(mesh=Mesh(**ways, tensor=tensor, context=context), zero=zero)
        found = memory(name, layout)
        state.append(float(found.weights + found.gradients + found.optimizer))
    assert state == sorted(state, reverse=True)


@functools.cache
def form_of(zero: int, schedule: str, recomputed: tuple[str, ...]) -> Form:
    return Form(zero=zero, schedule=schedule, recomputed=recomputed, sequence_parallel=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("schedule", ["none", "1f1b", "interleaved", "zb-v", "dualpipe"])
@pytest.mark.parametrize("recomputed", [(), SELECTIVE, (LAYER,)])
def test_arrays_hold_what_each_holds(
    name: str, zero: int, schedule: str, recomputed: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(zero)
    n = 12
    sizes = {r: rng.choice([1, 2, 4], n) for r in ("data", "fsdp", "context", "expert")}
    sizes["tensor"] = rng.choice([2, 4], n)
    sizes["pipe"] = np.ones(n, int) if schedule == "none" else rng.choice([2, 4], n)
    if zero < 3:
        sizes["fsdp"] = np.ones(n, int)
    micro, virtual = rng.choice([1, 2, 3], n), rng.choice([2, 3], n)
    form = form_of(zero, schedule, recomputed)
    words = {f.name: getattr(form, f.name) for f in dataclasses.fields(Form)}
    chunks = virtual if schedule == "interleaved" else 1
    many = Layouts(
        **words, sizes=sizes, micro_batch=micro, n_microbatches=np.full(n, 8), virtual=chunks
    )
    together = memory(name, many)
    for i in range(n):
        mesh = Mesh(**{role: int(values[i]) for role, values in sizes.items()})
        one = Layout(
            **words,
            mesh=mesh,
            micro_batch=int(micro[i]),
            n_microbatches=8,
            virtual=int(virtual[i]) if schedule == "interleaved" else 1,
        )
        alone = memory(name, one)
        for part in (*PARTS, "total", "margin"):
            column = np.broadcast_to(getattr(together, part), (n,))
            assert column[i] == pytest.approx(getattr(alone, part), rel=1e-12), f"{mesh}: {part}"


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.sampled_from(MODELS), layouts())
def test_words_about_axes_of_size_1_change_nothing(name: str, layout: Layout) -> None:
    """Sharding over one chip is no sharding, whatever shards and however attention crosses it."""
    alone = dataclasses.replace(
        layout, mesh=Mesh(pipe=layout.mesh.pipe), sequence_parallel=False, zero=0
    )
    before = memory(name, alone)
    for zero in range(4):
        for kind in ("gather", "ring", "ulysses"):
            after = memory(name, dataclasses.replace(alone, zero=zero, context_kind=kind))
            assert after.weights + after.gradients + after.optimizer == (
                before.weights + before.gradients + before.optimizer
            )
            assert after.activations == before.activations
            if zero < 2:
                assert after == before
