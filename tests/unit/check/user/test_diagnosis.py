"""A planted fault is named in the first words of a check; a program without it is told of none."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

import shardwise as sw
from shardwise.check.user.function import FunctionReport
from shardwise.report.check.faults import remedy
from shardwise.report.check.function import blocks
from shardwise.report.style import render
from tests.unit.check.compilers import needs
from tests.unit.check.user import faulty

MACHINE = "v5e:4x4"


@pytest.fixture(autouse=True)
def usual_level() -> Iterator[str]:
    """Compile with the least optimization, a third of the time: what is planted is there at any.

    A program has the level of the process that traces it, this one. Returns the usual one.
    """
    level: str = jax.config.jax_optimization_level
    jax.config.update("jax_optimization_level", "O0")
    yield level
    jax.config.update("jax_optimization_level", level)


def check(program: faulty.Program) -> FunctionReport:
    fn, args = program
    report = sw.check(fn, *args, on=MACHINE)
    assert isinstance(report, FunctionReport)
    return report


def answer(report: FunctionReport) -> str:
    """The first paragraph of the answer, in one line."""
    text = render(blocks(report), io.StringIO())
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.partition("\ntry ")[0].split())


def line_of(comment: str) -> str:
    """The place of the program's line with a comment, as messages write it."""
    path = Path(faulty.__file__)
    lines = path.read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {comment}")]
    return f"faulty.py:{number}"


@needs("tpu")
@pytest.mark.parametrize(
    "program",
    [
        faulty.update,
        faulty.mlp,
        *(
            pytest.param(program, marks=pytest.mark.oracle)
            for program in (faulty.logits, faulty.decode, faulty.model)
        ),
    ],
)
def test_a_program_without_faults_is_told_of_none(program: faulty.Program) -> None:
    report = check(program())  # type: ignore[operator]
    assert report.faults == ()
    assert " compiles with XLA's TPU compiler, and fits." in answer(report)


@needs("tpu")
def test_a_forgotten_donation() -> None:
    report = check(faulty.update(donated=False))
    assert answer(report).startswith("Not donated: 768 MiB of w and mu may be reused in place. ")
    (fault,) = report.faults
    assert fault.bytes == 768 * 2**20
    assert fault.share == pytest.approx(0.75 / 15.75)


@needs("tpu")
def test_a_cache_that_is_not_donated() -> None:
    report = check(faulty.decode(donated=False))
    assert "Not donated: 512 MiB of cache may be reused in place. " in answer(report)


@needs("tpu")
def test_a_cache_that_a_scan_copies(usual_level: str) -> None:
    # Without optimization, the program that copies nothing has copies of the compiler's own.
    jax.config.update("jax_optimization_level", usual_level)
    report = check(faulty.decode(carried=False))
    assert answer(report).startswith("Copied: 512 MiB of cache, ")
    (fault,) = report.faults
    assert 0.4 < fault.share < 0.6  # read and written again beside the layers' own reading
    in_place = check(faulty.decode())
    assert in_place.compiled is not None
    assert report.compiled is not None
    assert report.compiled.peak_bytes is not None
    assert in_place.compiled.peak_bytes == pytest.approx(
        report.compiled.peak_bytes - fault.bytes, rel=0.1
    )


@needs("tpu")
def test_a_product_in_fp32_of_arrays_in_bf16() -> None:
    report = check(faulty.mlp(fp32=True))
    assert answer(report).startswith("An fp32 product of 16-bit inputs in mlp (")
    (fault,) = report.faults
    assert (fault.kind, fault.share) == ("fp32 product", 0.5)
    assert str(fault.sources[0]).endswith(line_of("the fp32 product"))


@needs("tpu")
def test_a_reshard_in_a_loop() -> None:
    report = check(faulty.mlp(reshards=True))
    assert answer(report).startswith("A reshard inside a loop: all-to-all of bf16[")
    (fault,) = report.faults
    assert (fault.scope, fault.axes, fault.n_runs) == ("mlp", ("model",), faulty.L)
    assert str(fault.sources[0]).endswith(line_of("reshard"))
    sources = [str(row.sources[0]) for row in report.collectives]
    assert all("faulty.py:" in source for source in sources)


@needs("tpu")
def test_a_constraint_that_keeps_an_array_whole() -> None:
    report = check(faulty.mlp(hidden_is_whole=True))
    constraint = line_of("the wrong constraint")
    assert answer(report).startswith("The constraint at ")
    assert " keeps an array whole on the 4 chips along model, which all compute it in mlp (" in (
        answer(report)
    )
    assert " of the FLOPs too much and 101 MB gathered for it, " in answer(report)
    (fault,) = report.faults
    assert str(fault.constraint[0]).endswith(constraint)
    assert str(fault.sources[0]).endswith(line_of("the hidden product"))
    # Three quarters of the first product's FLOPs, which are then 4 times those of the second.
    assert fault.share == pytest.approx(0.75 * 4 / 5)
    assert remedy(fault).endswith(constraint)
    # The traffic and the products, at peak rates, are the difference to the program without it.
    assert report.compiled is not None
    clean = check(faulty.mlp())
    assert clean.compiled is not None
    assert report.compiled.step_s is not None
    assert clean.compiled.step_s is not None
    difference = report.compiled.step_s.roofline - clean.compiled.step_s.roofline
    assert fault.seconds == pytest.approx(difference, rel=0.2)


@needs("tpu")
def test_weights_that_nothing_splits() -> None:
    report = check(faulty.mlp(replicated=True))
    start = "Arguments are whole on all 16 chips: 256 MiB of up_LDF and down_LFD. "
    assert answer(report).startswith(start)


@needs("tpu")
def test_logits_that_are_whole_on_every_chip() -> None:
    report = check(faulty.logits(whole=True))
    start = "An activation is whole on all 16 chips: bf16[64,1024,32768] (4.00 GiB) in unembed ("
    assert answer(report).startswith(start)
    (fault,) = report.faults
    assert str(fault.sources[0]).endswith(line_of("the logits"))
    assert str(fault.constraint[0]).endswith(line_of("the logits"))
    assert ", by the constraint at " in answer(report)


@needs("tpu")
def test_a_batch_that_no_axis_splits() -> None:
    report = check(faulty.model(batch_is_whole=True, trains=True))
    start = "The batch is whole on all 16 chips: no axis splits tokens_BT, and sums of activations"
    assert answer(report).startswith(start)
    assert report.faults[0].axes == ("data", "model")


@needs("tpu")
def test_serving_may_leave_the_batch_whole() -> None:
    report = check(faulty.model(batch_is_whole=True))
    assert "whole batch" not in {fault.kind for fault in report.faults}


@needs("tpu")
def test_a_batch_that_is_split_no_more() -> None:
    report = check(faulty.model(batch_is_dropped=True))
    start = "An activation is gathered whole on all 16 chips: bf16[64,1024,2048] (256 MiB) in embed"
    assert answer(report).startswith(start)
    assert str(report.faults[0].sources[0]).endswith(line_of("the lookup"))
