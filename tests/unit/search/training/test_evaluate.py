"""The bounds that let the search leave cells out: never above what they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.estimate.calibration import PEAK, calibration
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.hardware import catalog_chip, parse_system
from shardwise.models import load
from shardwise.search.given import NOTHING_FIXED, fixed_of
from shardwise.search.training import rank
from shardwise.search.training.best import Best, groups
from shardwise.search.training.bound import bound, least_compute_seconds, least_seconds
from shardwise.search.training.cells import cells
from shardwise.search.training.evaluate import Block
from shardwise.workload import Train

CASES = [
    ("llama3.2-1b", "v5e:2x4", Train(batch=16, seq=2048), {}),  # a head as large as its layers
    ("gemma-2b", "h100:16", Train(batch=64, seq=1024), {}),  # a larger one
    ("llama3-8b", "v5e:4x4*2", Train(batch=64, seq=4096), {}),
    ("llama3-8b", "a100:16", Train(batch=32, seq=2048, remat="full", overlap=("tp_comm",)), {}),
    ("llama3-8b", "h100:16,sharp=on", Train(batch=64, seq=2048), {"zero": 0}),
    ("llama3-8b", "h100:16", Train(batch=64, seq=2048, reduce="int8"), {"schedule": "zb-v"}),
    ("mixtral-8x7b", "h100:32", Train(batch=64, seq=4096), {}),
    ("qwen1.5-moe-a2.7b", "h100:16", Train(batch=64, seq=2048), {}),
    ("deepseek-v2-lite", "v5p:4x4x4", Train(batch=64, seq=1024), {}),
]
# Memory that few strategies fit in.
TIGHT = [
    ("llama3.2-1b", "v5e:2x4,hbm=6GiB", Train(batch=64, seq=2048), {}),
    ("mixtral-8x7b", "h100:16,hbm=60GB", Train(batch=64, seq=4096), {}),
    ("deepseek-v2-lite", "v5p:4x4x4,hbm=12GB", Train(batch=64, seq=1024), {}),
    ("gemma-2b", "h100:8,hbm=20GB", Train(batch=8, seq=4096, moments="bf16"), {}),
]
Given = tuple[str, str, Train, dict[str, int | str]]


def blocks(case: Given, at: str = "") -> list[Block]:
    name, machine, job, fixed = case
    config, system = load(name), parse_system(machine)
    cal = PEAK if at == "peak" else calibration(system.chip)
    rates = Rates(chip=system.chip, job=job, calibration=cal, fusion=FusionProfile())
    given = {role: n for role, n in fixed.items() if isinstance(n, int)}
    every = cells(config, system.n_chips, job, given, {})
    assert every is not None
    every, _ = every.placed(system)
    admitted = fixed_of(fixed, any_layout=True)
    return [
        Block(config, job, group, every.take(rows), rates, admitted)
        for group, rows in groups(every, job.seq)
    ]


def scores(block: Block) -> list[tuple[float, float, int]]:
    """(whether it is too large, seconds or bytes, index) of every cell with a legal form."""
    rows = block.legal_rows()
    return [(*map(float, block.score[:, row]), int(row)) for row in rows]


@pytest.mark.parametrize(
    ("case", "at"),
    [(case, ("chip", "peak")[i % 2]) for i, case in enumerate(CASES)],
    ids=lambda c: c if isinstance(c, str) else f"{c[0]}-{c[1]}",
)
def test_no_strategy_of_a_cell_is_faster_than_its_bound(case: Given, at: str) -> None:
    close = 0
    for block in blocks(case, at):
        too_large, seconds = bound(block)
        assert (least_compute_seconds(block) <= seconds * (1 + 1e-9)).all()
        block.run(Best(1, None))
        for does_not_fit, best, i in scores(block):
            if not does_not_fit:
                cell = block.cells.meshes[i], block.cells.n_microbatches[i]
                assert not too_large[i], f"{cell}: {block.layout(i)}"
                assert seconds[i] <= best * (1 + 1e-9), f"{cell}: {block.layout(i)}"
                close += seconds[i] > best / 2
    assert close  # a bound of zero would hold, and would exclude nothing


def test_the_bound_of_a_pipeline_counts_bubble_and_head() -> None:
    """Without them a quarter of the pipelines would have a bound below half of their time."""
    shares = []
    for block in blocks(CASES[1]):
        if block.group.pipelined:
            seconds = least_seconds(block)
            block.run(Best(1, None))
            shares += [seconds[i] / best for too_large, best, i in scores(block) if not too_large]
    assert np.percentile(shares, 25) > 0.75


def test_the_bound_of_compute_alone_is_near_on_one_chip() -> None:
    """There the step has no collectives: only remat and the choice of microbatch are above it."""
    block = blocks(("qwen2-0.5b", "h100:1", Train(batch=4, seq=2048, remat="none"), {}))[0]
    seconds = least_compute_seconds(block)
    block.run(Best(1, None))
    rows = [(best, i) for too_large, best, i in scores(block) if not too_large]
    assert rows
    for best, i in rows:
        assert seconds[i] == pytest.approx(best, rel=1e-9)


def test_placements_of_a_mesh_share_compute_and_memory() -> None:
    n_cells = n_rows = 0
    for block in blocks(CASES[8]):
        work = block.work
        for column in ("meshes", "micro_batch", "n_microbatches"):
            shared = getattr(work.cells, column)[block.work_rows]
            assert (shared == getattr(block.cells, column)).all()
        n_cells += len(block.cells)
        n_rows += len(work.cells)
    assert n_rows < n_cells / 2


@pytest.mark.parametrize("case", TIGHT, ids=lambda c: f"{c[0]}-{c[1]}")
def test_what_a_bound_calls_too_large_fits_under_no_form(case: Given) -> None:
    told = fitting = 0
    for block in blocks(case):
        too_large, _ = bound(block)
        block.run(Best(1, None))
        for does_not_fit, _, i in scores(block):
            fitting += not does_not_fit
            told += bool(too_large[i])
            if too_large[i]:
                assert does_not_fit, f"{block.cells.meshes[i]}: {block.layout(i)}"
    assert told
    assert fitting


@pytest.mark.parametrize("case", [CASES[0], CASES[7]], ids=lambda c: f"{c[0]}-{c[1]}")
def test_groups_part_the_cells(case: Given) -> None:
    """Every cell is in a group, and in a second one where its weights may stay whole."""
    name, machine, job, _ = case
    every = cells(load(name), parse_system(machine).n_chips, job, {}, {})
    assert every is not None
    n = 0
    for group, rows in groups(every, job.seq):
        some = every.take(rows)
        sizes = some.sizes
        assert ((sizes["pipe"] > 1) == group.pipelined).all()
        assert ((sizes["context"] > 1) == group.context_parallel).all()
        assert (group.weights_sharded | (sizes["fsdp"] == 1)).all()
        n += len(some)
    both = (every.sizes["fsdp"] == 1) & (every.sizes["context"] > 1)
    assert n == len(every) + int(both.sum())


def test_a_block_gives_the_layout_that_it_scored() -> None:
    name, machine, job, _ = CASES[7]
    config, system = load(name), parse_system(machine)
    for block in blocks(CASES[7]):
        block.run(Best(1, None))
        rows = [row for row in scores(block) if not row[0]]
        for _, seconds, i in rows[:: max(1, len(rows) // 8)]:
            layout, placement = block.layout(i), block.cells.placements[i]
            cal = calibration(system.chip)
            alone = rank.evaluate(config, system, job, layout, cal, placement)
            assert alone.time.step_s == pytest.approx(seconds, rel=1e-12)


def test_ties_and_order_of_cells_change_nothing() -> None:
    """The best time of a ranking does not hang on the order in which cells are seen."""
    name, machine, job, _ = CASES[0]
    config, system = load(name), parse_system(machine)
    every = cells(config, system.n_chips, job, {}, {})
    assert every is not None
    every, _ = every.placed(system)
    rng = np.random.default_rng(0)
    rates = Rates(
        chip=system.chip,
        job=job,
        calibration=calibration(catalog_chip("v5e")),
        fusion=FusionProfile(),
    )
    found = []
    for _ in range(2):
        best = Best(3, None)
        shuffled = every.take(rng.permutation(len(every)))
        for group, rows in groups(shuffled, job.seq):
            Block(config, job, group, shuffled.take(rows), rates, NOTHING_FIXED).run(best)
        found.append(sorted(best.step_s.values()))
    assert found[0] == pytest.approx(found[1], rel=1e-12)
