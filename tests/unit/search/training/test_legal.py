"""Which meshes are legal, and what is said of those that are not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.hardware import parse_system
from shardwise.models import ModelConfig, load
from shardwise.search.model_sizes import divisors, kv_heads_divide, n_experts, tensor_widths
from shardwise.search.training.legal import (
    batch_shards,
    chunk_problems,
    context_fits,
    legal_meshes,
    near_multiples,
    problems,
)
from shardwise.strategy.layout import Form, Layout
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train

LLAMA = load("llama3-70b")


@given(st.integers(1, 5000))
def test_divisors(n: int) -> None:
    assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_near_multiples(n: int, of: int) -> None:
    near = [int(part.replace(",", "")) for part in near_multiples(n, of).split(", ")]
    assert all(m > 0 and m % of == 0 and abs(m - n) < of for m in near)
    assert n in near or len(near) == (2 if n > of else 1)


def test_widths_that_tensor_parallelism_splits() -> None:
    assert tensor_widths(LLAMA) == {"n_heads": 64, "d_ff": 28672}
    # The first layers are dense and wide, the others routed and narrow with a shared expert.
    assert tensor_widths(load("deepseek-v3")) == {"n_heads": 128, "d_ff": math.gcd(18432, 2048)}


@pytest.mark.parametrize(
    ("tensor", "fine"),
    [(1, True), (2, True), (8, True), (16, True), (64, True), (3, False), (12, False)],
)
def test_key_heads_are_whole_or_shared_evenly(tensor: int, fine: bool) -> None:
    assert kv_heads_divide(LLAMA, tensor) is fine


def test_latent_attention_has_no_key_heads() -> None:
    assert kv_heads_divide(load("deepseek-v3"), 7)


@pytest.mark.parametrize(
    ("batch", "seq", "machine"),
    [(64, 2048, "v5p:4x4x4"), (48, 4096, "v5e:4x4*3"), (16, 96, "h100:16"), (12, 64, "gb200:72")],
)
@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b"])
def test_legal_meshes_are_all_that_have_no_problem(
    name: str, batch: int, seq: int, machine: str
) -> None:
    system, job = parse_system(machine), Train(batch=batch, seq=seq)
    config = load(name)
    n = system.n_chips
    every = [
        Mesh(data=d, fsdp=f, tensor=t, context=c, expert=e, pipe=n // (d * f * t * c * e))
        for d, f, t, c, e in itertools.product(divisors(n), repeat=5)
        if n % (d * f * t * c * e) == 0
    ]
    fine = {m for m in every if not problems(config, system, job, m.sizes, whole=True)}
    found = list(legal_meshes(config, system.n_chips, job, {}))
    assert len(found) == len(set(found))
    assert set(found) == fine


def test_fixed_roles_are_kept() -> None:
    system, job = parse_system("v5p:4x4x4"), Train(batch=64, seq=4096)
    whole = set(legal_meshes(LLAMA, system.n_chips, job, {}))
    for fixed in ({"tensor": 4}, {"fsdp": 8, "tensor": 2}, {"data": 1}, {"context": 1},
                  {"pipe": 4}, {"pipe": 2, "data": 2}):  # fmt: skip
        found = set(legal_meshes(LLAMA, system.n_chips, job, fixed))
        assert found == {m for m in whole if all(getattr(m, r) == n for r, n in fixed.items())}
        assert found
    assert not list(legal_meshes(LLAMA, system.n_chips, job, {"tensor": 3}))


@pytest.mark.parametrize(
    ("mesh", "told"),
    [
        ({"fsdp": 32}, "fsdp 32 is 32 chips; v5p:4x4x4 has 64."),
        ({}, "the mesh has no axis of several chips; v5p:4x4x4 has 64: data=64."),
        (
            {"tensor": 12},
            "tensor 12 does not divide: n_heads 64 (/12 = 5.3), d_ff 28,672 (/12 = 23",
        ),
        ({"tensor": 12}, "Sizes that do: 2, 4, 8, 16."),
        ({"expert": 2}, "expert 2: llama3-70b has no experts to shard; leave it at 1."),
        (
            {"pipe": 32},
            "pipe 32: 80 layers leave 16 of 96 places in equal stages empty. Sizes that",
        ),
        ({"pipe": 84}, "pipe 84:"),  # four stages without a layer
        (
            {"fsdp": 48},
            "64 sequences do not divide over 48 shards (fsdp 48). Nearest batches that do: 48, 96.",
        ),
        (
            {"data": 3, "fsdp": 16},
            "64 sequences do not divide over 48 shards (data 3 x fsdp 16). Nearest batches",
        ),
        (
            {"context": 3},
            "4,096 tokens of a sequence do not divide over context 3. Sizes that do: 1, 2, 4, 8.",
        ),
        (
            {"fsdp": 3},
            "d_model 8,192 does not divide over fsdp 3 x context 1. Move a factor of fsdp to data.",
        ),
    ],
)
def test_problems_say_what_would_work(mesh: dict[str, int], told: str) -> None:
    job, system = Train(batch=64, seq=4096), parse_system("v5p:4x4x4")
    assert told in "\n".join(problems(LLAMA, system, job, mesh, whole=True))


def test_all_problems_are_found() -> None:
    job, system = Train(batch=7, seq=99), parse_system("v5p:4x4x4")
    mesh = {"tensor": 12, "fsdp": 3, "context": 2, "pipe": 96, "expert": 2}
    found = problems(LLAMA, system, job, mesh, whole=True)
    for said in ("13,824 chips", "tensor 12 does not", "pipe 96: 80 layers", "expert 2:",
                 "7 sequences", "99 tokens", "d_model 8,192"):  # fmt: skip
        assert sum(said in problem for problem in found) == 1, said
    assert len(found) == 7


def test_experts_that_expert_parallelism_deals_out() -> None:
    assert n_experts(LLAMA) == 1
    assert n_experts(load("mixtral-8x7b")) == 8
    assert n_experts(load("deepseek-v3")) == 256  # though its first layers are dense
    job, system = Train(batch=64, seq=4096), parse_system("h100:64")
    (told,) = problems(load("mixtral-8x7b"), system, job, {"expert": 16}, whole=False)
    assert told == "expert 16 does not divide 8 experts. Sizes that do: 1, 2, 4, 8."


@pytest.mark.parametrize(
    ("name", "tensor", "context", "fits"),
    [
        ("llama3-70b", 1, 8, True),  # 64 heads, 8 key heads
        ("llama3-70b", 8, 8, True),  # each key head on 8 chips
        ("llama3-70b", 8, 16, False),
        ("llama2-7b", 1, 32, True),
        ("llama2-7b", 4, 16, False),
        ("deepseek-v3", 16, 8, True),  # the latent has no heads
    ],
)
def test_heads_that_are_exchanged_for_tokens(
    name: str, tensor: int, context: int, fits: bool
) -> None:
    sizes = {**Mesh().sizes, "tensor": tensor, "context": context}
    config = load(name)
    assert context_fits(config, Form(context_kind="ulysses"), sizes) == fits
    assert context_fits(config, Form(context_kind="ring"), sizes)
    many = {role: np.array([n, 1]) for role, n in sizes.items()}
    assert context_fits(config, Form(context_kind="ulysses"), many).tolist() == [fits, True]


def test_key_heads_that_do_not_divide() -> None:
    config = ModelConfig.dense(
        n_layers=1, d_model=768, d_ff=3072, n_heads=12, n_kv_heads=4, vocab=100
    )
    job, system = Train(batch=6, seq=96), parse_system("h100:6")
    assert problems(config, system, job, {"tensor": 6}, whole=True) == [
        "tensor 6 and n_kv_heads 4: neither divides the other."
    ]


def test_a_part_of_a_mesh_must_leave_whole_chips() -> None:
    job, system = Train(batch=1120, seq=4096), parse_system("v5p:16x20x28")
    assert problems(LLAMA, system, job, {"tensor": 4}, whole=False) == []
    (told,) = problems(LLAMA, system, job, {"fsdp": 1024}, whole=False)[:1]
    assert told.startswith("fsdp 1024 leaves 8,960 / 1,024 = 8.75 chips for the other axes")


def test_how_many_ways_a_batch_can_be_split() -> None:
    system = parse_system("v5p:16x20x28")
    shards = batch_shards(LLAMA, 4096, system)
    assert 1120 in shards
    assert 1024 not in shards
    for n in shards:
        assert next(legal_meshes(LLAMA, system.n_chips, Train(batch=n, seq=4096), {}), None)


def test_chunks_of_the_loss_divide_the_tokens_of_a_chip() -> None:
    layout = Layout(mesh=Mesh(context=4), micro_batch=2, loss_chunks=64)
    assert chunk_problems(layout, 128) == []
    (told,) = chunk_problems(layout, 96)
    assert told == (
        "loss_chunks 64 does not divide the 48 tokens of a chip (micro_batch 2 x 96 over context "
        "4). 48 does."
    )
