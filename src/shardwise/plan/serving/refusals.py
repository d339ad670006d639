"""When there is no deployment: which number broke it, and the nearest that work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise import units
from shardwise.errors import DoesNotFit, NoLegalEngine, NoStrategy, ShardwiseError
from shardwise.estimate.serving.memory import max_batch, weights_bytes
from shardwise.search import fit
from shardwise.search.serving.evaluate import batch_unit, forms, legal
from shardwise.search.serving.layouts import machines
from shardwise.search.serving.rank import Ranking, Request, rank
from shardwise.workload import Serve

NARROWER = {"tpu": ("int8", "int4"), "gpu": ("fp8", "int4"), "other": ("int8",), "cpu": ("int8",)}


def ranked(asked: Request, keep: int, *, each_reader: bool = False) -> Ranking:
    """The search, its refusals with what would work.

    Raises:
        NoStrategy, DoesNotFit: see `shardwise.plan`.
    """
    try:
        return rank(asked, keep, each_reader=each_reader)
    except DoesNotFit:
        raise _does_not_fit(asked) from None
    except NoLegalEngine:
        raise _not_legal(asked) from None
    except NoStrategy as error:
        raise NoStrategy(*error.problems, *_nearest(asked)) from None


def _not_legal(asked: Request) -> NoStrategy:
    given = " and ".join(asked.fixed.names)
    hint = f"Leave {given} free, or choose other sizes." if given else "Ask for another machine."
    problem = f"no engine of {asked.config.name} fills {_name(asked)}{asked.fixed}."
    return NoStrategy(problem, hint)


def _name(asked: Request) -> str:
    return asked.where.name if asked.machine_is_given else f"a machine of {asked.chip.name}"


def _does_not_fit(asked: Request) -> DoesNotFit:
    """The weights, or the batch, against the memory; and the smallest machines that hold it."""
    problem, larger = shortage(asked)
    job = min(asked.jobs, key=_bytes)
    return DoesNotFit(problem, *(_smallest(asked, job) if larger else ()))


def shortage(asked: Request) -> tuple[str, bool]:
    """Why nothing fits, and whether a larger machine would help."""
    job, chip = min(asked.jobs, key=_bytes), asked.chip
    every = asked.engines()
    if every is None:
        return f"no engine of {asked.config.name} fits {_name(asked)}.", False
    hbm, ideal = chip.need("hbm.capacity"), asked.rates(job).ideal
    most, least, units_of = 0.0, float("inf"), set()
    for form in forms(asked.config, asked.fixed):
        rows = legal(asked.config, form, every.sizes, asked.fixed).nonzero()[0]
        if not len(rows):
            continue
        sizes = every.take(rows).sizes
        held = weights_bytes(asked.config, form, sizes, job)
        fits = max_batch(asked.config, form, sizes, job, hbm, ideal=ideal)
        least = min(least, float(held.min()))
        unit = batch_unit(asked.config, form, sizes)
        rounded = fits // unit * unit * sizes["data"]
        most = max(most, float(rounded.max()))
        units_of |= {int(u) for u in (unit * sizes["data"])[rounded > 0]}
    if most < 1:
        problem = (
            f"does not fit: {asked.config.name} in {job.weights} holds {units.show_gib(least)} of "
            f"weights a chip at least on {_name(asked)}, {units.show_gib(hbm)} is there"
        )
        room = "" if least > hbm else f", and not one sequence of {job.context:,} tokens beside it"
        return f"{problem}{room}.", True
    batch = job.batch or 1
    if batch > most:
        return (
            f"does not fit: {batch:,} sequences of {job.context:,} tokens; {_name(asked)} has room "
            f"for {most:,.0f}."
        ), True
    near = ", ".join(f"{u:,}" for u in sorted(units_of)[:6])
    return (
        f"--batch {batch:,} does not divide evenly over the engines that fit on {_name(asked)}: it "
        f"must be a multiple of one of {near}."
    ), False


def _bytes(job: Serve) -> float:
    return units.bytes_per_element(job.weights)


def _smallest(asked: Request, job: Serve) -> Iterator[str]:
    """The smallest machines of the chip, by dtype."""
    found = []
    for dtype in dict.fromkeys((job.weights, *NARROWER[asked.chip.kind])):
        if units.bytes_per_element(dtype) > _bytes(job):
            continue
        kv = job.kv if dtype == job.weights else dtype
        other = replace(job, weights=dtype, kv=kv, compute=job.compute)
        for system in machines(asked.config, asked.chip, other):
            try:
                bare = replace(other, rate=None, ttft_s=None, tpot_s=None)
                rank(Request(config=asked.config, where=system, jobs=[bare], peak=asked.peak), 0)
            except ShardwiseError:
                continue
            found.append(f"{dtype} {system.name}")
            break
    if found:
        yield f"Smallest that fit: {' · '.join(found)}. Nothing was planned."
    else:
        try:
            fit.fit(asked.config, asked.chip, job)
        except DoesNotFit as error:
            yield error.problems[0]


def _nearest(asked: Request) -> Iterator[str]:
    """Other machines and dtypes that meet the bounds."""
    job, offers = asked.job, []
    if asked.machine_is_given and not job.batch and not asked.fixed:
        offers += _meets(replace(asked, where=asked.chip), "")
    if not asked.fixed and len(asked.jobs) == 1:
        for dtype in NARROWER[asked.chip.kind]:
            if units.bytes_per_element(dtype) < _bytes(job):
                compute = dtype if dtype in asked.chip.peak_flops_per_s else job.compute
                other = replace(job, weights=dtype, kv=dtype, compute=compute)
                offers += _meets(replace(asked, jobs=[other]), f"--dtype {dtype} ")
                break
    if not offers and not asked.peak:
        found = _meets(replace(asked, peak=True), "")
        if found:
            yield f"At the chip's bare peaks, which no engine reaches, {found[0]} would (--peak)."
    if offers:
        yield f"What meets it: {', or '.join(offers)}."
    elif asked.fixed.names:
        yield f"Leave {' and '.join(asked.fixed.names)} free, or loosen the bounds."
    else:
        yield "Loosen the bounds, shorten the context, or take a chip with more HBM bandwidth."


def _meets(asked: Request, words: str) -> list[str]:
    try:
        best = rank(asked, 0).candidates[0]
    except ShardwiseError:
        return []
    name = best.server.system.name
    many = f" × {best.server.count}" if best.server.count > 1 and not asked.machine_is_given else ""
    return [f"{words}{name}{many} ({units.show_seconds(best.tpot_s)} a token)"]
