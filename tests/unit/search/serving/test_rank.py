"""The search of deployments: arrays against numbers, orders that must hold, what is legal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import DoesNotFit, NoStrategy
from shardwise.hardware.chip import with_values
from shardwise.search.given import NOTHING_FIXED, fixed_of
from shardwise.search.serving.candidate import Candidate
from shardwise.search.serving.choose import front, per_chip
from shardwise.search.serving.deployments import colocated, concatenate, disaggregated
from shardwise.search.serving.evaluate import blocks
from shardwise.search.serving.layouts import engine_meshes, engines_per_machine, machines
from shardwise.search.serving.legal import batch_unit
from shardwise.search.serving.rank import Request, rank

LLAMA, MIXTRAL = sw.model("llama3-70b"), sw.model("mixtral-8x7b")
CHAT = sw.Serve(prompt=2048, output=256)
BOUNDED = replace(CHAT, rate=4.0, tpot_s=0.05, ttft_s=2.0)


def asked(model: sw.ModelConfig, where: str, job: sw.Serve, **more: object) -> Request:
    place = sw.hardware(where) if ":" in where else sw.chip(where)
    return Request(config=model, hardware=place, jobs=[job], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "where", "job", "disaggregate"),
    [
        (LLAMA, "v5e:4x8", CHAT, None),
        (LLAMA, "h100", BOUNDED, None),
        (LLAMA, "h100:16", CHAT, True),
        (MIXTRAL, "h200:8", CHAT, None),
        (MIXTRAL, "v5p:2x2x4", replace(CHAT, drafted=3, cached=0.5), None),
    ],
)
@pytest.mark.parametrize("peak", [True, False])
def test_arrays_and_numbers_agree(
    model: sw.ModelConfig, where: str, job: sw.Serve, disaggregate: bool | None, peak: bool
) -> None:
    request = asked(model, where, job, disaggregate=disaggregate, peak=peak)
    every = request.engines()
    assert every is not None
    found = blocks(model, every, [(job, request.rates(job))], {})
    parts = colocated(found, job, machine_is_given=request.machine_is_given)
    if disaggregate:
        parts = disaggregated(model, found, job, 16, machine_is_given=request.machine_is_given)
    points = concatenate(parts)
    from shardwise.search.serving.rank import candidate

    for i in np.linspace(0, len(points) - 1, 40).astype(int):
        one = candidate(model, found, points, int(i))
        assert one.tpot_s == pytest.approx(points.tpot_s[i], rel=1e-9)
        assert one.ttft_s == pytest.approx(points.ttft_s[i], rel=1e-9)
        assert one.most_tokens_per_s == pytest.approx(points.tokens_per_s[i], rel=1e-9)
        assert one.most_requests_per_s == pytest.approx(points.requests_per_s[i], rel=1e-9)
        memory = one.server.memory(one.batch)
        assert memory.fits
        assert memory.total == memory.weights + memory.kv_cache + memory.other
        assert one.batch <= one.server.max_batch
        assert one.batch % batch_unit(model, one.server.layout, one.server.layout.sizes) == 0


def best(model: sw.ModelConfig, where: str, job: sw.Serve, **more: object) -> Candidate:
    return rank(asked(model, where, job, **more)).candidates[0]


@pytest.mark.parametrize("figure", ["hbm.bandwidth", "peak.bf16", "node.egress", "hbm.capacity"])
def test_a_faster_chip_is_never_slower(figure: str) -> None:
    job = replace(CHAT, batch=16)
    system = sw.hardware("h100:8")
    faster = with_values(system.chip, {figure: 2 * system.chip.need(figure)})
    before = rank(Request(config=LLAMA, hardware=system, jobs=[job])).candidates[0]
    after = rank(Request(config=LLAMA, hardware=replace(system, chip=faster), jobs=[job]))
    assert after.candidates[0].tpot_s <= before.tpot_s * (1 + 1e-12)


def test_more_sequences_give_more_tokens() -> None:
    request = asked(LLAMA, "v5e:4x8", sw.Serve(context=4096), peak=True)
    every = request.engines()
    assert every is not None
    for block in blocks(LLAMA, every, [(request.job, request.rates(request.job))], {}):
        for engine in np.unique(block.engine_index):
            here = block.engine_index == engine
            order = np.argsort(block.batch[here])
            assert (np.diff(block.steady.tokens_per_s[here][order]) >= -1e-9).all()
            assert (np.diff(block.steady.tpot_s[here][order]) >= -1e-12).all()


def test_nothing_beats_the_front() -> None:
    request = asked(LLAMA, "h100:8", CHAT)
    every = request.engines()
    assert every is not None
    found = blocks(LLAMA, every, [(CHAT, request.rates(CHAT))], {})
    points = concatenate(colocated(found, CHAT, machine_is_given=True))
    each, tpot = per_chip(points, CHAT), points.tpot_s
    for i in front(points, CHAT):
        assert not ((each > each[i] * (1 + 1e-8)) & (tpot < tpot[i] * (1 - 1e-8))).any()


def test_a_bound_is_met_and_a_lower_one_never_cheaper() -> None:
    loose = best(LLAMA, "h100", replace(BOUNDED, tpot_s=0.08))
    tight = best(LLAMA, "h100", replace(BOUNDED, tpot_s=0.02))
    assert loose.tpot_s <= 0.08
    assert tight.tpot_s <= 0.02
    assert tight.ttft_s <= 2.0
    assert loose.chips <= tight.chips
    for found in (loose, tight):
        assert found.most_requests_per_s >= 4.0


def test_a_rate_is_served_by_as_many_engines_as_it_takes() -> None:
    chips = [
        best(LLAMA, "h100", replace(CHAT, rate=r, tpot_s=0.05)).chips for r in (2.0, 8.0, 32.0)
    ]
    assert chips == sorted(chips)
    assert chips[0] < chips[-1]


def test_what_cannot_be_met_says_what_comes_nearest() -> None:
    with pytest.raises(NoStrategy, match=r"--tpot 1\.00 ms: the fastest takes .* \(tensor 16 on"):
        best(LLAMA, "v5e:4x4", sw.Serve(context=8192, tpot_s=0.001))
    with pytest.raises(NoStrategy, match="serves at most"):
        best(LLAMA, "v5e:4x4", replace(CHAT, rate=1000.0))
    with pytest.raises(DoesNotFit):
        best(LLAMA, "v5e:2x2", CHAT)


def test_two_kinds_of_engines_share_the_chips() -> None:
    found = best(LLAMA, "h100:16", CHAT, disaggregate=True)
    assert found.prefill_server is not None
    used = (
        found.server.count * found.server.n_chips
        + found.prefill_server.count * found.prefill_server.n_chips
    )
    assert used <= 16
    assert found.transfer_s > 0


def test_gathered_weights_are_never_taken_and_slower_when_asked_for() -> None:
    job = sw.Serve(context=4096, batch=16)
    ranking = rank(asked(LLAMA, "h100:8", job), 20)
    assert all(c.server.layout.weights != "gathered" for c in ranking.candidates)
    gathered = best(LLAMA, "h100:8", job, fixed=fixed_of({"weights": "gathered"}))
    assert gathered.tpot_s > 2 * ranking.candidates[0].tpot_s


@pytest.mark.parametrize("where", ["v5e:4x4", "h100:24", "gb200:72"])
def test_engines_fit_side_by_side(where: str) -> None:
    system = sw.hardware(where)
    for mesh in engine_meshes(MIXTRAL, system, CHAT, NOTHING_FIXED, fills_machine=False):
        n = mesh.n_chips // mesh.data
        assert mesh.n_chips <= system.n_chips
        assert mesh.data == engines_per_machine(system, n)
        assert mesh.expert == 1 or 8 % mesh.expert == 0


def test_machines_of_a_chip_hold_the_weights() -> None:
    chip = sw.chip("v5e")
    found = machines(LLAMA, chip, sw.Serve(context=8192, weights="int8"))
    assert [s.name for s in found][:2] == ["v5e:2x4", "v5e:4x4"]


def test_narrower_weights_are_searched_beside_wide_ones() -> None:
    jobs = [sw.Serve(context=8192, weights=d, kv=d) for d in ("bf16", "int8")]
    request = Request(config=LLAMA, hardware=sw.hardware("v5e:4x4"), jobs=jobs)
    assert rank(request).candidates[0].job.weights == "int8"
