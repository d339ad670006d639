"""Dimensional analysis: every formula of time, bytes and money has the unit that it says."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import units
from shardwise.estimate import kernels, nccl
from shardwise.estimate.calibration import PEAK as PEAK_RATES
from shardwise.estimate.calibration import Calibration
from shardwise.estimate.chip_memory import Memory
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.training import (
    chip_rates,
    local_work,
    matmul_kinds,
    microbatch,
    optimizer,
    overlap,
    ring_merge,
)
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.memory import peak as memory
from shardwise.estimate.training.memory import stages
from shardwise.estimate.training.memory.framework import LOSS_IN_PLACE, FrameworkMemory
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.run_variant import IDEAL, FusionProfile
from shardwise.estimate.training.step import StepTime, step_time
from shardwise.formulas import cost, roofline
from shardwise.formulas.flops import compute_s, mfu
from shardwise.models import load
from shardwise.ops.collective import KINDS, inbound_bytes_per_s, price, time_s
from shardwise.ops.program import training_step
from shardwise.ops.sharded import Program
from shardwise.strategy.layout import Layout, table
from shardwise.strategy.mesh import Mesh, Placement
from shardwise.strategy.span import Ring, Span, Tier
from shardwise.vocabulary import LAYER
from shardwise.workload import Train
from tests.dim import Quantity, WrongUnits, flops, n_bytes, per_second, seconds, units_of

# Bytes that formulas name: of an element in 16 bits, of a score, of a runtime.
NAMED_BYTES = ((matmul_kinds, "SCORE_BYTES"), (chip_rates, "CAST_BYTES"), (stages, "HALF"),
               (memory, "DRIVER_BYTES"), (ring_merge, "MERGE_BYTES"))  # fmt: skip
SECOND = units_of(seconds(1))
BYTE = units_of(n_bytes(1))
NONE = ()
PEAK, RATE = per_second(flops(4.59e14)), per_second(n_bytes(2.765e12))
LINK = per_second(n_bytes(9e10))

SPANS = {
    "ring": Span((Ring(0, 4, 1, True, LINK),), seconds(1e-6)),
    "line and ring": Span(
        (Ring(0, 4, 1, False, LINK), Ring(1, 5, 2, True, LINK)), seconds(1e-6),
        borrowed=(Ring(2, 4, 1, True, LINK),),
    ),
    "tiers": Span(
        tiers=(
            Tier("node", 8, per_second(n_bytes(4.5e11)), seconds(1e-6), True),
            Tier("scale-out", 4, per_second(n_bytes(5e10)), seconds(2e-6)),
        )
    ),
    "slices": Span(
        (Ring(0, 4, 1, True, LINK),), seconds(1e-6),
        (Tier("dcn", 2, per_second(n_bytes(6e9)), seconds(1e-5)),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("directions", [1, 2])
def test_a_collective_takes_seconds(kind: str, span: Span, directions: int) -> None:
    found = price(kind, span, directions)
    assert units_of(found.s_per_byte) == (("byte", -1), ("second", 1))
    assert units_of(found.latency_s) == SECOND
    for size in (1.0, 1e12):
        assert units_of(time_s(kind, n_bytes(size), span, directions)) == SECOND


def test_a_ring_has_bytes_per_second() -> None:
    assert units_of(inbound_bytes_per_s(Ring(0, 5, 2, True, LINK))) == units_of(LINK)


def test_the_roofline() -> None:
    matmul = roofline.Matmul(
        B=256, D=8192, F=28672, a_bytes=n_bytes(2), w_bytes=n_bytes(1), out_bytes=n_bytes(2)
    )
    found = roofline.bounds(flops(float(matmul.flops)), PEAK, matmul.n_bytes, RATE)
    assert units_of(found.math_s) == units_of(found.comms_s) == SECOND
    assert units_of(found.lower) == units_of(found.upper) == SECOND
    assert units_of(matmul.n_bytes) == units_of(matmul.loaded_bytes) == BYTE
    intensity = roofline.critical_intensity(PEAK, RATE)
    assert units_of(intensity) == (("byte", -1), ("flop", 1))
    # A matmul counts its FLOPs as a pure number: so does the peak that it is held against.
    batch = matmul.critical_batch(per_second(Quantity(4.59e14)), RATE)
    assert units_of(batch) == NONE


def test_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "HOUR", Quantity(3600, second=1, hour=-1))
    tokens, per_step = Quantity(15e12, token=1), Quantity(4.6e6, token=1, step=-1)
    run = cost.run(Quantity(1.0, second=1, step=-1), tokens, per_step, Quantity(8960, chip=1),
                   Quantity(4.2, dollar=1, chip=-1, hour=-1))  # fmt: skip
    assert units_of(run.seconds) == SECOND
    assert units_of(run.chip_hours) == (("chip", 1), ("hour", 1))
    assert units_of(run.usd) == (("dollar", 1),)
    assert units_of(mfu(flops(1e15), seconds(2), 4, PEAK)) == NONE
    assert units_of(compute_s(flops(1e15), 4, PEAK, 0.4)) == SECOND


class Device:
    """Stands for a chip: its figures carry their units."""

    name, kind, matrix_unit, power_w = "test", "tpu", (128, 128), None
    peak_flops_per_s: Mapping[str, Quantity] = {"bf16": PEAK}
    pcie_bytes_per_s_per_chip = per_second(n_bytes(1.6e10))
    figures: Mapping[str, Any] = {}

    def need(self, path: str) -> Quantity:
        return {"hbm_bytes_per_s": RATE, "hbm_bytes": n_bytes(9.5e10)}[path]

    def peak(self, dtype: str) -> Quantity:
        assert dtype == "bf16"
        return PEAK


@pytest.fixture
def units_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Elements have bytes, local products have FLOPs; nothing cached without units is used."""
    optimizer.state_bytes.cache_clear()
    sizes = {name: n_bytes(size) for name, size in units.BYTES_PER_ELEMENT.items()}
    monkeypatch.setattr(units, "BYTES_PER_ELEMENT", sizes)
    monkeypatch.setattr(Train, "activation_bytes", n_bytes(2))
    for module, name in NAMED_BYTES:
        monkeypatch.setattr(module, name, n_bytes(getattr(module, name)))
    monkeypatch.setattr(overlap, "TINY", seconds(overlap.TINY))
    for name in ("RING", "LOW_LATENCY_RING", "TREE"):
        protocol = getattr(nccl, name)
        times = {f: seconds(getattr(protocol, f)) for f in ("base_s", "inside_s", "outside_s")}
        monkeypatch.setattr(nccl, name, replace(protocol, **times))
    plain = Program.local_flops
    counted: Callable[..., Quantity] = lambda *given: flops(float(plain(*given)))
    monkeypatch.setattr(Program, "local_flops", counted)
    _sixteen_bits(monkeypatch)
    yield
    optimizer.state_bytes.cache_clear()


def _sixteen_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas that write 2.0 for the bytes of an element in 16 bits: their results are bytes."""
    monkeypatch.setattr(chip_rates.Rates, "dtype", lambda *_: "bf16")
    # The depth of a matmul follows from its FLOPs, and has their unit here.
    monkeypatch.setattr(kernels, "matrix_unit_efficiency", lambda *_: 0.9)
    monkeypatch.setattr(microbatch, "element_bytes", lambda *_: n_bytes(2))
    monkeypatch.setattr(local_work, "element_bytes", lambda *_: n_bytes(2))


LAYOUTS = {
    "zero 3": Layout(
        mesh=Mesh(data=2, fsdp=4, tensor=2, context=2), zero=3, sequence_parallel=True
    ),
    "ring": Layout(mesh=Mesh(data=2, fsdp=4, context=2), zero=3, context_kind="ring"),
    "zero 2": Layout(mesh=Mesh(data=8, tensor=2, context=2), zero=2, recomputed=(LAYER,)),
    "pipeline": Layout(
        mesh=Mesh(data=8, tensor=2, pipe=2), zero=1, n_microbatches=4, schedule="1f1b",
        recomputed=("norms", "gate", "up", "activation"),
        overlap=("grad_reduce", "param_gather", "pipe_p2p", "tp_comm"),
    ),
    "experts": Layout(
        mesh=Mesh(data=2, expert=4, tensor=2, pipe=2), n_microbatches=4, schedule="dualpipe",
        overlap=("expert_all_to_all",), sequence_parallel=True,
    ),
}  # fmt: skip


def one_step(
    name: str, span: Span, layout: Layout, device: Any = None, cal: Calibration = PEAK_RATES
) -> tuple[StepTime, Memory]:
    config, job = load(name), Train(batch=layout.global_batch, seq=2048, master="fp32")
    batch = layout.micro_batch * layout.data_shards
    remat = "full" if layout.full_remat else "none"
    works = training_step(config, batch, 2048, table(layout), remat=remat)
    spans = tuple((axis, span) for axis, n in layout.sizes.items() if n > 1)
    costs = CollectiveCost([Placement(spans, (4, 5, 4), (True, True, True))])
    kernels = IDEAL if cal is PEAK_RATES else FusionProfile()
    reached = Rates(chip=device or Device(), job=job, calibration=cal, fusion=kernels)
    priced = PricedLayout(config=config, layout=layout, rates=reached, costs=costs)
    one = microbatch.microbatch_time(priced, works)
    software = FrameworkMemory(logit_bytes=n_bytes(LOSS_IN_PLACE))
    held = step_memory(config, job, works, layout, reached.chip.need("hbm_bytes"), software)
    return step_time(priced, one), held


CORRECTED = Calibration(
    matmuls={"bf16": 0.6}, attention=0.5, grouped=0.4, hbm=0.8, network=0.9,
    kernel_s=seconds(1e-6), host_s=seconds(1e-3), attention_backward=0.8,
)  # fmt: skip


@pytest.mark.usefixtures("units_everywhere")
@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize("split", LAYOUTS)
@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("cal", [PEAK_RATES, CORRECTED], ids=["peak", "corrected"])
def test_a_step_takes_seconds_and_holds_bytes(
    name: str, split: str, span: Span, cal: Calibration
) -> None:
    if split == "experts" and name == "llama3-8b":
        return
    found, held = one_step(name, span, LAYOUTS[split], cal=cal)
    times = [found.compute_s, found.head_s, found.update_s, *found.traffic_s.values()]
    times += [found.bubble_s, *found.comm_s.values(), found.on_chip_s]
    times += [found.lower_s, found.step_s, found.upper_s]
    assert {units_of(t) for t in times if t} == {SECOND}
    parts = (held.weights, held.gradients, held.optimizer, held.activations, held.other)
    assert {units_of(p) for p in (*parts, held.total, held.capacity, held.margin)} == {BYTE}
    assert held.fits in (True, False)


@pytest.mark.usefixtures("units_everywhere")
def test_a_step_with_a_wrong_figure_is_seen() -> None:
    """The analysis can fail: HBM given in FLOP/s makes a time that is none."""

    class Wrong(Device):
        def need(self, path: str) -> Quantity:
            return PEAK if path == "hbm_bytes_per_s" else super().need(path)

    with pytest.raises(WrongUnits):
        one_step("llama3-8b", SPANS["ring"], LAYOUTS["zero 3"], Wrong())


@pytest.mark.usefixtures("units_everywhere")
def test_a_step_with_a_wrong_correction_is_seen() -> None:
    wrong = Calibration(kernel_s=n_bytes(1e-6))
    with pytest.raises(WrongUnits):
        one_step("llama3-8b", SPANS["ring"], LAYOUTS["zero 3"], cal=wrong)


def test_a_collective_with_a_wrong_figure_is_seen() -> None:
    wrong = Span((Ring(0, 4, 1, True, n_bytes(9e10)),), seconds(1e-6))
    with pytest.raises(WrongUnits):
        time_s("all_gather", n_bytes(1e9), wrong)


@pytest.mark.parametrize("name", ["add", "sub", "lt", "le", "gt", "ge", "eq"])
def test_seconds_do_not_meet_bytes(name: str) -> None:
    function = getattr(operator, name)
    for a, b in ((seconds(1), n_bytes(1)), (seconds(1), 1.0), (1.0, n_bytes(1))):
        with pytest.raises(WrongUnits):
            function(a, b)
    function(seconds(1), seconds(2))
    function(seconds(1), 0)


def test_maxima_and_sums_are_watched() -> None:
    with pytest.raises(WrongUnits):
        max(seconds(1), n_bytes(2))
    with pytest.raises(WrongUnits):
        sum([seconds(1), n_bytes(2)])
    assert units_of(sum([seconds(1), seconds(2)])) == SECOND


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_a_quantity_computes_as_a_number(a: float, b: float) -> None:
    x, y = n_bytes(a), seconds(b)
    assert float(x / y) == a / b
    assert float(x * y) == a * b
    assert float(2 * x - x) == 2 * a - a
    assert units_of(x / y) == (("byte", 1), ("second", -1))
    assert units_of(x / x) == units_of(3 / (1 / Quantity(2.0))) == NONE
    assert units_of(1 / y) == (("second", -1),)
    assert units_of(-(x**2)) == (("byte", 2),)
