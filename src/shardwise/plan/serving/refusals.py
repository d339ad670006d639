"""Errors for jobs without a serving plan: which number is wrong, and what would work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardwise import units
from shardwise.errors import DoesNotFit, NoLegalEngine, NoStrategy, ShardwiseError, TooManyChips
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.search import fit
from shardwise.search.given import Fixed
from shardwise.search.serving.candidate import Server
from shardwise.search.serving.layouts import machines
from shardwise.search.serving.rank import Ranking, Request, rank
from shardwise.search.serving.room import rooms
from shardwise.workload import Serve

# Kind of chip -> the narrow dtypes to suggest.
NARROW_DTYPES = {
    "tpu": ("int8", "int4"),
    "gpu": ("fp8", "int4"),
    "other": ("int8",),
    "cpu": ("int8",),
}


def rank_or_explain(request: Request, n_candidates: int, *, each_prefill: bool = False) -> Ranking:
    """Rank the deployments of a request; if there are none, the error says what would work.

    Args:
        n_candidates: number of deployments to keep.
        each_prefill: also keep deployments that differ only in their prefill engines.

    Raises:
        NoStrategy: no engine is legal, or no deployment meets the bounds.
        TooManyChips: the rate needs more chips than machines have.
        DoesNotFit: no engine fits in memory.
    """
    try:
        return rank(request, n_candidates, each_prefill=each_prefill)
    except DoesNotFit:
        raise _does_not_fit(request) from None
    except NoLegalEngine:
        raise _no_legal_engine(request) from None
    except TooManyChips:
        raise
    except NoStrategy as error:
        raise NoStrategy(*error.problems, *what_meets_bounds(request)) from None


def _no_legal_engine(request: Request) -> NoStrategy:
    names = " and ".join(request.fixed.names)
    hint = f"Leave {names} free, or choose other sizes." if names else "Choose another machine."
    problem = f"no engine of {request.config.name} fills {_hardware_text(request)}{request.fixed}."
    return NoStrategy(problem, hint)


def _hardware_text(request: Request) -> str:
    return (
        request.hardware.name if request.machine_is_given else f"a machine of {request.chip.name}"
    )


def _does_not_fit(request: Request) -> DoesNotFit:
    """Make the error that nothing fits in memory, with the smallest machines that would."""
    problem, larger_helps = shortage(request)
    if not larger_helps:
        return DoesNotFit(problem)
    return DoesNotFit(problem, *_smallest_machines(request, _smallest_weights_job(request)))


def _smallest_weights_job(request: Request) -> Serve:
    """The job with the narrowest weight dtype."""
    return min(request.jobs, key=_weight_bytes)


def shortage(request: Request) -> tuple[str, bool]:
    """(sentence that says why no engine fits, whether a larger machine would help)."""
    job = _smallest_weights_job(request)
    config = request.config
    hardware = _hardware_text(request)
    engine_rooms = list(
        rooms(
            config,
            request.systems,
            job,
            fixed=request.fixed,
            ideal=request.rates(job).ideal,
            fills_machine=not request.machine_is_given,
        )
    )
    if not engine_rooms:
        return f"no engine of {config.name} fits {hardware}.", False
    capacity = capacity_bytes(request.chip)
    if not engine_rooms[0].sequences:
        weights = min(room.weights_bytes for room in engine_rooms)
        problem = (
            f"does not fit: {config.name} in {job.weights} holds {units.show_gib(weights)} of "
            f"weights a chip at least on {hardware}, {units.show_gib(capacity)} is there"
        )
        if weights <= capacity:
            problem += f", and not one sequence of {job.context:,} tokens beside it"
        return f"{problem}.", True
    batch = job.batch or 1
    if batch > engine_rooms[0].sequences:
        return (
            f"does not fit: {batch:,} sequences of {job.context:,} tokens; {hardware} has room "
            f"for {engine_rooms[0].sequences:,}."
        ), True
    multiples = {room.unit * room.mesh.data for room in engine_rooms if room.sequences}
    listed = ", ".join(f"{n:,}" for n in sorted(multiples)[:6])
    return (
        f"--batch {batch:,} does not divide evenly over the engines that fit on {hardware}: it "
        f"must be a multiple of one of {listed}."
    ), False


def _weight_bytes(job: Serve) -> float:
    return units.bytes_per_element(job.weights)


def _smallest_machines(request: Request, job: Serve) -> Iterator[str]:
    """Sentences with the smallest machine of the chip that fits, for each dtype.

    The sizes that the user fixed are kept where a machine fits with them.
    """
    sizes = tuple((name, value) for name, value in request.fixed.chosen if name != "data")
    fitting = _fitting_machines(request, job, replace(request.fixed, chosen=sizes))
    with_free_sizes = {}
    if request.fixed.names:
        unfixed = _fitting_machines(request, job, replace(request.fixed, chosen=(), max_sizes=()))
        with_free_sizes = {dtype: name for dtype, name in unfixed.items() if dtype not in fitting}
    if fitting:
        yield f"Smallest that fit: {_listed(fitting)}. Nothing was planned."
    if with_free_sizes:
        names = " and ".join(request.fixed.names)
        machines_text = _listed(with_free_sizes)
        yield f"Smallest that fit with {names} left free: {machines_text}. Nothing was planned."
    if fitting or with_free_sizes:
        return
    try:
        fit.fit(request.config, request.chip, job)
    except DoesNotFit as error:
        yield error.problems[0]


def _listed(machines_of_dtypes: Mapping[str, str]) -> str:
    return " · ".join(f"{dtype} {name}" for dtype, name in machines_of_dtypes.items())


def _fitting_machines(request: Request, job: Serve, fixed: Fixed) -> dict[str, str]:
    """Dtype -> name of the smallest machine of the chip that fits with the fixed settings."""
    fitting = {}
    for dtype in dict.fromkeys((job.weights, *NARROW_DTYPES[request.chip.kind])):
        if units.bytes_per_element(dtype) > _weight_bytes(job):
            continue
        kv = job.kv if dtype == job.weights else dtype
        narrow = replace(job, weights=dtype, kv=kv)
        for system in machines(request.config, request.chip, narrow):
            attempt = Request(
                config=request.config,
                hardware=system,
                jobs=[narrow.without_load()],
                fixed=fixed,
                peak=request.peak,
            )
            try:
                rank(attempt, 0)
            except ShardwiseError:
                continue
            fitting[dtype] = system.name
            break
    return fitting


def what_meets_bounds(request: Request, does_what: str = "meets it") -> Iterator[str]:
    """A sentence with other machines and dtypes that would meet the bounds.

    Args:
        does_what: what they do, as the sentence says it.
    """
    job = request.job
    chip = request.chip
    options = []
    if request.machine_is_given and not job.batch and not request.fixed:
        try:
            options += _option_of_best(replace(request, hardware=chip), "")
        except TooManyChips as error:
            yield error.problems[0]
            return
    if not request.fixed and len(request.jobs) == 1:
        for dtype in NARROW_DTYPES[chip.kind]:
            if units.bytes_per_element(dtype) < _weight_bytes(job):
                compute = dtype if dtype in chip.peak_flops_per_s else job.compute
                narrow = replace(job, weights=dtype, kv=dtype, compute=compute)
                options += _option_of_best(replace(request, jobs=[narrow]), f"--dtype {dtype} ")
                break
    if not options and not request.peak:
        at_peak = _option_of_best(replace(request, peak=True), "")
        if at_peak:
            yield f"At the chip's bare peaks, which no engine reaches, {at_peak[0]} would (--peak)."
    if options:
        yield f"What {does_what} on average: {', or '.join(options)}."
    elif request.fixed.names:
        yield f"Leave {' and '.join(request.fixed.names)} free, or loosen the bounds."
    else:
        yield "Loosen the bounds, shorten the context, or take a chip with more HBM bandwidth."


def _option_of_best(request: Request, flag: str) -> list[str]:
    """Text of a search's best deployment with its time per token; empty if there is none.

    Raises:
        TooManyChips: the rate needs more chips than machines have.
    """
    try:
        best = rank(request, 0).candidates[0]
    except TooManyChips:
        raise
    except ShardwiseError:
        return []
    machines = best.server.system.name
    time = f"{units.show_seconds(best.tpot_s)} a token"
    if not request.machine_is_given:
        machines = " + ".join(_counted(s) for s in (best.server, best.prefill_server) if s)
        time = f"{best.chips:,} chips, {time}"
    return [f"{flag}{machines} ({time})"]


def _counted(server: Server) -> str:
    """Machines of equal engines: `3 × v6e:2x2`."""
    name = server.system.name
    return f"{server.count} × {name}" if server.count > 1 else name
