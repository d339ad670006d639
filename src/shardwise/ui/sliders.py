"""The sliders of the page: what each may be set to, and what has to follow when it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.search.model_sizes import divisors
from shardwise.search.training.forms import words
from shardwise.search.training.legal import legal_meshes
from shardwise.strategy.layout import data_shards
from shardwise.strategy.mesh import ROLES
from shardwise.ui.answer import answer, deployment
from shardwise.ui.question import Inputs, LocalNames, Question, read
from shardwise.vocabulary import REMAT_POLICIES
from shardwise.workload import Serve, Train

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # sequences of a data shard
SERVED = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
LENGTHS = tuple(1 << power for power in range(9, 19))
DTYPES = ("bf16", "fp8", "int8", "int4")
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
MACHINE = {"ici": "ICI bandwidth", "node": "NVLink bandwidth", "scale_out": "network bandwidth"}
MACHINE |= {"dcn": "DCN bandwidth", "hbm_bandwidth": "HBM bandwidth", "flops": "peak FLOP/s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """One slider.

    Args:
        group: the object of a question that has its value: strategy, words, factors, or "" for
            the question itself.
        stops: its legal values, with the present one.
        follows: the mesh axis that takes the chips which another one leaves; else empty.
        changes: what the question becomes at each stop, key by key of `group`.
    """

    group: str
    name: str
    label: str
    value: int | float | str
    stops: list[int | float | str]
    changes: list[dict[str, Any]]
    follows: str = ""


def sliders(question: Question, inputs: Inputs, plan: AnyPlan) -> list[Slider]:
    """All sliders of a plan; those with a single stop are left out."""
    all_sliders = [*_of_work(question, inputs, plan), *_of_mesh(inputs, plan)]
    if isinstance(plan, Plan):
        all_sliders += _of_words(plan)
    all_sliders += _of_machine(question, inputs)
    return [slider for slider in all_sliders if len(slider.stops) > 1]


def curve(
    question: Question,
    slider: Slider,
    local: LocalNames,
    is_wanted: Callable[[], bool] = lambda: True,
) -> list[dict[str, Any]]:
    """The answer at each stop of a slider: seconds, or why there is none.

    Args:
        is_wanted: whether to go on, asked before each stop: a curve that nobody waits for any more
            would slow the answers that somebody does.
    """
    points: list[dict[str, Any]] = []
    for stop, change in zip(slider.stops, slider.changes, strict=True):
        if not is_wanted():
            break
        try:
            numbers = _numbers(read(_changed(question, slider.group, change), local))
        except ShardwiseError as error:
            points.append({"stop": stop, "problem": error.problems[0]})
            continue
        points.append({"stop": stop, **numbers})
    return points


def _changed(question: Question, group: str, change: dict[str, Any]) -> Question:
    """The question after a move of a slider."""
    import msgspec

    if group:
        change = {group: {**(getattr(question, group) or {}), **change}}
    return msgspec.structs.replace(question, **change)


def _numbers(inputs: Inputs) -> dict[str, Any]:
    """A point of a curve: `value` is the chip seconds of a token, which the search makes small."""
    if isinstance(inputs.job, Serve):
        chosen = deployment(inputs)
        rate = chosen.tokens_per_s / chosen.chips
        return {
            "value": 1 / rate,
            "fits": bool(chosen.server.memory(chosen.batch).left >= 0),
            "seconds": chosen.tpot_s,
            "tokens_per_s_per_chip": rate,
            "batch": chosen.batch,
        }
    plan = answer(inputs)
    point = {"value": 1 / plan.estimate.tokens_per_s_per_chip, "fits": plan.memory.left >= 0}
    if isinstance(plan, Plan):
        point |= {"seconds": plan.step.expected, "mfu": plan.estimate.mfu}
    return point


def _of_work(question: Question, inputs: Inputs, plan: AnyPlan) -> Iterator[Slider]:
    job = inputs.job
    if isinstance(job, Train) and isinstance(plan, Plan):
        shards = data_shards(plan.strategy.mesh)
        batches = [n * shards for n in BATCHES]
        larger = [n * job.batch for n in (2, 4) if n * job.batch > batches[-1]]
        yield _plain("batch", "batch, sequences", job.batch, [*batches, *larger])
        lengths = _lengths(inputs, job, plan)
        yield _plain("seq", "sequence, tokens", job.seq, lengths)
    elif isinstance(job, Serve) and not isinstance(plan, Plan):
        yield _batch_of_engine(plan)
        yield _plain("prompt", "prompt, tokens", question.prompt, LENGTHS[:9])
        yield _plain("output", "output, tokens", question.output, LENGTHS[:6])
        dtypes = list(dict.fromkeys([*DTYPES, question.dtype]))
        yield _slider("", "dtype", "dtype of weights", question.dtype, dtypes)


def _batch_of_engine(plan: ServingPlan) -> Slider:
    """A slider of the sequences of one engine; a question has those of all engines."""
    from shardwise.plan.serving.rebuild import rebuild

    _, candidate = rebuild(plan)
    most, unit = candidate.server.max_batch, candidate.server.batch_unit
    batches = [n for n in SERVED if n <= most and n % unit == 0]
    label = "batch, sequences of an engine"
    slider = _slider("", "batch", label, plan.estimate.decode.batch, batches)
    changes = [{"batch": n * candidate.server.layout.mesh.data} for n in slider.stops]
    return replace(slider, changes=changes)


def _lengths(inputs: Inputs, job: Train, plan: Plan) -> list[int]:
    """Lengths of sequences that the plan's mesh can shard."""
    legal = []
    for length in LENGTHS:
        longer = replace(job, seq=length)
        if _is_legal(inputs, longer, plan.strategy.mesh):
            legal.append(length)
    return legal


def _of_mesh(inputs: Inputs, plan: AnyPlan) -> Iterator[Slider]:
    """A slider for each mesh axis, while the larger of data and fsdp takes what is left."""
    job = inputs.job
    sizes = dict(plan.strategy.mesh)
    if not isinstance(job, Train):
        yield from _of_engine(inputs, sizes)
        return
    chips = prod(sizes.values())
    for role in ROLES:
        follows = _follower(role, sizes)
        other_chips = prod(n for name, n in sizes.items() if name not in (role, follows))
        stops, changes = [], []
        for size in divisors(chips // other_chips):
            mesh = {**sizes, role: size, follows: chips // other_chips // size}
            if size == sizes[role] or _is_legal(inputs, job, mesh):
                stops.append(size)
                changes.append(mesh)
        yield Slider(
            group="strategy",
            name=role,
            label=role,
            value=sizes[role],
            stops=[*stops],
            changes=changes,
            follows=follows,
        )


def _is_legal(inputs: Inputs, job: Train, mesh: dict[str, int]) -> bool:
    return any(legal_meshes(inputs.model, inputs.system.n_chips, job, mesh))


def _follower(role: str, sizes: dict[str, int]) -> str:
    """The axis that takes the chips which `role` leaves."""
    if role in ("data", "fsdp"):
        return {"data": "fsdp", "fsdp": "data"}[role]
    return "fsdp" if sizes["fsdp"] > sizes["data"] else "data"


def _of_engine(inputs: Inputs, sizes: dict[str, int]) -> Iterator[Slider]:
    """Sliders for the axes of a serving engine; what is left of the machine are more engines."""
    engine = {role: n for role, n in sizes.items() if role != "data"}
    for role in ("tensor", "pipe", "expert"):
        other_chips = prod(n for name, n in engine.items() if name != role)
        if role not in engine or inputs.system.n_chips % other_chips:
            continue
        stops = [
            n
            for n in divisors(inputs.system.n_chips // other_chips)
            if n == engine[role] or _divides(inputs, role, n)
        ]
        changes = [{**engine, role: n} for n in stops]
        yield Slider(
            group="strategy",
            name=role,
            label=f"{role} of an engine",
            value=engine[role],
            stops=[*stops],
            changes=changes,
            follows="engines",
        )


def _divides(inputs: Inputs, role: str, size: int) -> bool:
    """Whether the model's sizes allow an engine's axis of this size."""
    from shardwise.search.model_sizes import expert_problems, tensor_problems

    if role == "tensor":
        return not tensor_problems(inputs.model, size)
    if role == "expert":
        return not expert_problems(inputs.model, size)
    return size <= inputs.model.n_layers


def _of_words(plan: Plan) -> Iterator[Slider]:
    strategy = plan.strategy
    sequences = plan.workload.batch // data_shards(strategy.mesh)
    sizes = [n for n in divisors(sequences) if n <= BATCHES[-1]]
    yield _slider("words", "micro_batch", "microbatch, sequences", strategy.micro_batch, sizes)
    yield _slider("words", "remat", "recompute", strategy.remat, [*REMAT_POLICIES])
    if strategy.mesh["data"] > 1 and strategy.mesh["fsdp"] == 1:  # fsdp is ZeRO-3
        yield _slider("words", "zero", "ZeRO stage", strategy.zero, [0, 1, 2])
    if strategy.mesh["pipe"] > 1:
        schedules = [name for name in words()["schedule"] if name != "none"]
        yield _slider("words", "schedule", "pipeline schedule", strategy.schedule, schedules)


def _of_machine(question: Question, inputs: Inputs) -> Iterator[Slider]:
    chip = inputs.system.chip
    names = {"hbm_bandwidth", "flops"}
    if chip.ici:
        names |= {"ici"} | ({"dcn"} if inputs.system.n_slices > 1 else set())
    elif inputs.system.n_chips > 1:
        names |= {"node"} if chip.node else set()
        names |= {"scale_out"} if chip.scale_out else set()
    for name, label in MACHINE.items():
        if name in names:
            value = question.factors.get(name, 1.0)
            yield _slider("factors", name, f"{label} ×", value, [*FACTORS])


def _plain(name: str, label: str, value: int, stops: list[int] | tuple[int, ...]) -> Slider:
    """A slider of a number of the question itself."""
    return _slider("", name, label, value, [*stops])


def _slider(
    group: str, name: str, label: str, value: int | float | str, stops: list[Any]
) -> Slider:
    if value not in stops:
        stops = [*stops, value]
        if not isinstance(value, str):
            stops.sort()
    changes = [{name: stop} for stop in stops]
    return Slider(group=group, name=name, label=label, value=value, stops=stops, changes=changes)
