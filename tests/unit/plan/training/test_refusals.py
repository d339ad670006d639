"""When there is no plan: every offer that a refusal makes really works."""

from __future__ import annotations

import functools
import re

import pytest

import shardwise as sw
from shardwise.errors import DoesNotFit, NoStrategy, UnknownFigure
from shardwise.plan.training.refusals import nearby
from shardwise.search.training.legal import legal_meshes

LLAMA = sw.model("llama3-70b")


@functools.cache
def refused(name: str, machine: str, job: sw.Train, **fixed: int | str) -> str:
    with pytest.raises(NoStrategy) as error:
        sw.plan(sw.model(name), sw.hardware(machine), job, fixed)
    return str(error.value)


def test_a_batch_that_no_split_of_the_pod_divides() -> None:
    text = refused("llama3-70b", "v5p:16x20x28", sw.Train(batch=1024, seq=4096))
    first, multiples, works = text.splitlines()
    assert first == (
        "no split of 8,960 chips divides 1,024 sequences of 4,096 tokens, n_heads 64, "
        "d_ff 28,672, d_model 8,192."
    )
    assert "1,120" in multiples
    assert "--batch 1120x4096 (+9.4%)" in works
    assert re.search(r"or v5p:\d+x\d+x\d+ \([\d,]+ chips\)", works)


@pytest.mark.parametrize(
    ("name", "machine", "job"),
    [
        ("llama3-70b", "v5p:16x20x28", sw.Train(batch=1024, seq=4096)),
        ("llama3-8b", "v5p:4x4x52", sw.Train(batch=7, seq=4096)),
        ("llama3-8b", "h100:104", sw.Train(batch=127, seq=4095)),
        ("llama3-8b", "v5p:4x4x52", sw.Train(batch=64, seq=4096)),
        pytest.param(
            "mixtral-8x7b", "v5e:4x4*13", sw.Train(batch=128, seq=4096), marks=pytest.mark.oracle
        ),
        ("llama3-8b", "gb200:72", sw.Train(batch=64, seq=4096)),
    ],
)
def test_every_offer_is_legal(name: str, machine: str, job: sw.Train) -> None:
    text = refused(name, machine, job)
    model, system = sw.model(name), sw.hardware(machine)
    batches = re.findall(r"--batch (\d+)x(\d+)", text)
    machines = re.findall(r"[ ,](\w+:[\dx]+) \(", text)
    assert batches or machines
    for batch, seq in batches:
        other = sw.Train(batch=int(batch), seq=int(seq))
        assert int(seq) == job.seq
        assert abs(other.batch / job.batch - 1) <= 0.25
        assert sw.plan(model, system, other).strategy.mesh
    for other_machine in machines:
        found = sw.search(model, sw.hardware(other_machine), job, n=1)
        assert found[0].hardware.name == other_machine


def multiples(text: str) -> list[int]:
    listed = re.search(r"multiple of one of (.*): 8,960", text)[1]
    return [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", listed.replace(", ", " "))]


def test_multiples_that_are_named_are_the_splits() -> None:
    """`must` is what it says: without a pipeline, what is no multiple of any cannot be split."""
    pod = sw.hardware("v5p:16x20x28")
    named = multiples(refused("llama3-70b", "v5p:16x20x28", sw.Train(batch=1024, seq=4096)))
    others = [n for n in (1024, 1025, 1280, 1281) if all(n % m for m in named)]
    assert others
    for batch in (*named, *others):
        job = sw.Train(batch=batch, seq=4096)
        found = next(legal_meshes(LLAMA, pod.n_chips, job, {"pipe": 1}), None)
        assert (found is not None) == (batch in named), batch


def test_roles_that_leave_no_mesh() -> None:
    text = refused("llama3-70b", "v5p:16x20x28", sw.Train(batch=1120, seq=4096), tensor=16, data=8)
    assert text.splitlines()[-1] == "Leave tensor and data free, or choose other sizes."


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        ({"pipe": 5, "schedule": "dualpipe"}, "Leave pipe and schedule free"),
        ({"n_microbatches": 3}, "Leave n_microbatches free"),
        ({"pipe": 1, "schedule": "1f1b"}, "Leave pipe and schedule free"),
        ({"fsdp": 2, "zero": 1}, "Leave fsdp and zero free"),
    ],
)
def test_words_that_leave_no_strategy(fixed: dict[str, int | str], told: str) -> None:
    text = refused("llama3-8b", "h100:80", sw.Train(batch=80, seq=4096), **fixed)
    for name, value in fixed.items():
        assert f"{name} {value}" in text
    assert text.splitlines()[-1].startswith(told)


def test_limits_that_leave_no_mesh() -> None:
    with pytest.raises(NoStrategy, match="tensor at most 1"):
        sw.plan(LLAMA, sw.hardware("h100:64"), sw.Train(batch=8, seq=1024), {"pipe": 1},
                most={"tensor": 1})  # fmt: skip


def test_what_does_not_fit_and_by_how_much() -> None:
    with pytest.raises(DoesNotFit) as error:
        sw.plan(LLAMA, sw.hardware("h100:8"), sw.Train(batch=8, seq=2048))
    needs, parts, hint = error.value.problems
    assert re.fullmatch(
        r"does not fit: llama3-70b on h100:8 needs [\d.]+ GiB per chip at least, "
        r"79.6 GiB is there \(x[\d.]+\)\.",
        needs,
    )
    for part in ("weights", "gradients", "optimizer", "activations"):
        assert f"{part} " in parts
    assert hint.startswith("Smallest machines that hold it: shardwise fit llama3-70b h100 --train")
    asked = re.search(r"shardwise fit (\S+) (\S+) --train", hint)
    assert sw.fit(sw.model(asked[1]), sw.chip(asked[2]), sw.Train(batch=1, seq=2048)).n_chips > 8


def test_too_many_activations() -> None:
    with pytest.raises(
        DoesNotFit, match=r"one sequence at a time: shorter sequences, or more chips"
    ):
        sw.plan(sw.model("llama3.2-1b"), sw.hardware("h100:8"), sw.Train(batch=8, seq=2**23))


def test_the_number_that_is_told_is_the_least() -> None:
    job, system = sw.Train(batch=16, seq=2048), sw.hardware("v5e:4x4")
    with pytest.raises(DoesNotFit) as error:
        sw.plan(LLAMA, system, job)
    told = float(re.search(r"needs ([\d.]+) GiB", str(error.value))[1])
    for mesh in (sw.Mesh(fsdp=16), sw.Mesh(fsdp=4, tensor=4), sw.Mesh(fsdp=8, tensor=2)):
        assert told <= sw.evaluate(LLAMA, system, job, mesh).memory.total / 2**30 + 0.05


def test_absurd_work_does_not_fit() -> None:
    for machine in ("v5p:4x4x4", "h100:8"):
        with pytest.raises(DoesNotFit):
            sw.plan(LLAMA, sw.hardware(machine), sw.Train(batch=2**31, seq=2**31))


def test_a_figure_that_is_missing() -> None:
    with pytest.raises(UnknownFigure, match=r"v100 has no figure for"):
        sw.plan(sw.model("llama3-8b"), sw.hardware("v100:64"), sw.Train(batch=64, seq=4096))


@pytest.mark.parametrize("machine", ["v5p:8x8x8", "v5e:8x8", "h100:256", "gb200:144"])
def test_machines_nearby(machine: str) -> None:
    system = sw.hardware(machine)
    for other in nearby(system):
        assert system.n_chips / 2 <= other.n_chips <= 2 * system.n_chips
        assert sw.hardware(other.name) == other


@pytest.mark.parametrize(
    ("fixed", "product"),
    [
        ({"micro_batch": 3, "data": 2}, "micro_batch 3 x data 2 = 6 sequences do not divide the"),
        (
            {"micro_batch": 1, "n_microbatches": 2, "data": 8, "fsdp": 1, "expert": 1},
            "n_microbatches 2 x data 8 = 16 sequences are not the batch of 128",
        ),
    ],
)
def test_microbatches_that_do_not_make_the_batch(fixed: dict[str, int], product: str) -> None:
    job = sw.Train(batch=128, seq=4096)
    with pytest.raises(NoStrategy, match=product):
        sw.plan(sw.model("llama3-8b"), sw.hardware("h100:8"), job, fixed)
