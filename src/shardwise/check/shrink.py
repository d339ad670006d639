"""Check of a plan by smaller programs: for a smaller machine, or for models with fewer layers.

The program of a chip does not depend on the number of replicas of the model, so `data` can be
reduced. And a model is a scan over layers, so each layer adds the same FLOPs and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shardwise.check.causes import TimedParts
from shardwise.check.options import CompileOptions
from shardwise.check.training import CompiledStep, compile_step, make_verdict
from shardwise.check.verdict import CheckedCollective, CompiledNumbers, CompiledSeconds, Verdict
from shardwise.errors import BadInput
from shardwise.hardware import parse_system
from shardwise.models import ModelConfig
from shardwise.models.stack import respread
from shardwise.plan.schema.architecture import planned_model
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.build import evaluate
from shardwise.plan.training.rebuild import rebuild
from shardwise.strategy.mesh import Mesh

LINEAR_NOTE = (
    "FLOPs and bytes of a scan over layers grow linearly with their number; seconds and the peak "
    "of memory are approximate."
)
ONE_LAYER_NOTE = "The compiler unrolls a single layer: 2,3 layers estimate seconds better."
MAX_SIZES = 8  # the largest number of machine sizes that an error lists


def on_smaller_system(plan: Plan, system_name: str) -> tuple[Plan, str]:
    """The same plan on a machine with fewer chips along `data`, and a note about it.

    Raises:
        BadInput: the machine has another chip, or `data` cannot be reduced to its size.
    """
    case = rebuild(plan)
    system = parse_system(system_name)
    planned_data = case.layout.sizes["data"]
    replica_chips = case.system.n_chips // planned_data
    data, remainder = divmod(system.n_chips, replica_chips)
    if system.chip.name != case.system.chip.name:
        raise BadInput(f"the plan is for {case.system.chip.name}; {system_name} has another chip.")
    if remainder or not 1 <= data <= planned_data or planned_data % data:
        sizes = []
        for divisor in range(1, planned_data):
            if planned_data % divisor == 0:
                sizes.append(f"{replica_chips * divisor:,}")
        choices = "on no smaller machine"
        if sizes:
            choices = f"with {', '.join(sizes[:MAX_SIZES])} chips"
        raise BadInput(
            f"{system_name} has {system.n_chips:,} chips. Only data ({planned_data}) can be "
            f"reduced; the other axes take {replica_chips:,} chips. The program of a chip is the "
            f"same {choices}."
        )
    job = replace(case.job, batch=case.job.batch * data // planned_data)
    layout = replace(case.layout, mesh=Mesh(**{**case.layout.sizes, "data": data}))
    smaller = evaluate(case.model, system, job, layout, peak=case.peak)
    note = (
        f"Compiled on {system_name} with data {data}; the plan has data {planned_data} on "
        f"{case.system.name}."
    )
    return smaller, note


def check_extrapolated(
    plan: Plan, layers: Sequence[int], options: CompileOptions, note: str = ""
) -> Verdict:
    """Check a plan by extrapolation from programs with two depths.

    Args:
        layers: the two depths: layers of each kind, in a pipeline per stage.

    Raises:
        BadInput: these are not two depths, the model has fewer layers, or a pipeline has several
            kinds of layers.
    """
    case = rebuild(plan)
    counts = [group.count for group in case.model.groups]
    n_stages = case.layout.sizes["pipe"] * case.layout.virtual
    low, high = _depths(layers, counts, n_stages)
    base_counts = [min(low * n_stages, count) for count in counts]
    base = compile_step(with_depth(plan, case.model, base_counts), options)
    total = base
    for index, count in enumerate(counts):
        if count <= low * n_stages:
            continue
        deeper_counts = base_counts.copy()
        deeper_counts[index] = min(high * n_stages, count)
        deeper = compile_step(with_depth(plan, case.model, deeper_counts), options)
        factor = (count - low * n_stages) / (deeper_counts[index] - low * n_stages)
        total = _extrapolate(total, deeper, base, factor)
    unit_text = "kind and stage" if n_stages > 1 else "kind"
    notes = [
        note,
        f"Compiled with {low} and {high} layers of each {unit_text}; the model has {sum(counts)}.",
        LINEAR_NOTE,
        ONE_LAYER_NOTE if low == 1 else "",
    ]
    fits = None
    numbers = total.numbers
    if numbers and numbers.peak_bytes is not None and numbers.capacity_bytes:
        fits = numbers.peak_bytes <= numbers.capacity_bytes
    return make_verdict(plan, replace(total, fits=fits), " ".join(filter(None, notes)))


def with_depth(plan: Plan, model: ModelConfig, counts: Sequence[int]) -> Plan:
    """The plan with another number of layers of each kind; its estimates are not changed."""
    groups = []
    for group, count in zip(model.groups, counts, strict=True):
        groups.append(replace(group, count=count))
    shallow = replace(model, groups=tuple(groups), order=respread(model.order, counts))
    return replace(plan, model=planned_model(shallow))


def _depths(layers: Sequence[int], counts: Sequence[int], n_stages: int) -> tuple[int, int]:
    if len(layers) != 2 or not 1 <= layers[0] < layers[1]:
        raise BadInput(
            f"{', '.join(map(str, layers))} are not two depths: write two numbers of layers, the "
            "smaller first, as 1,2."
        )
    if max(counts) < layers[1] * n_stages:
        raise BadInput(
            f"{layers[1] * n_stages} layers are not fewer than the model has of a kind "
            f"({', '.join(map(str, counts))}): check the whole model."
        )
    if n_stages > 1 and len(counts) > 1:
        raise BadInput(
            "layers of several kinds in a pipeline cannot be extrapolated: check the whole model."
        )
    return layers[0], layers[1]


def _extrapolate(
    total: CompiledStep, deeper: CompiledStep, base: CompiledStep, factor: float
) -> CompiledStep:
    """Add `factor` times the difference between the deeper program and the base to a total."""
    for step in (total, deeper, base):
        if step.numbers is None or step.failure:
            raise BadInput("not even the shallow model fits: check the plan without --layers.")

    def linear(figure: Callable[[CompiledStep], float]) -> float:
        return _linear((figure(total), figure(deeper), figure(base)), factor)

    return replace(
        total,
        numbers=_extrapolate_numbers(total.numbers, deeper.numbers, base.numbers, factor),
        collectives=_extrapolate_rows(
            total.collectives, deeper.collectives, base.collectives, factor
        ),
        attention_flops=linear(lambda step: step.attention_flops),
        recomputed_flops=linear(lambda step: step.recomputed_flops),
        parts=_extrapolate_parts(total.parts, deeper.parts, base.parts, factor),
        arrays=(),
    )


def _extrapolate_parts(
    total: TimedParts, deeper: TimedParts, base: TimedParts, factor: float
) -> TimedParts:
    seconds = _linear_by_key((total.seconds, deeper.seconds, base.seconds), factor)
    return TimedParts(seconds=seconds, details={**deeper.details, **total.details})


def _extrapolate_numbers(
    total: CompiledNumbers | None,
    deeper: CompiledNumbers | None,
    base: CompiledNumbers | None,
    factor: float,
) -> CompiledNumbers | None:
    if total is None or deeper is None or base is None:
        return None

    def linear(figure: Callable[[CompiledNumbers], float]) -> float:
        return _linear((figure(total), figure(deeper), figure(base)), factor)

    seconds = total.step_s
    if seconds and deeper.step_s and base.step_s:
        cycles = None
        if seconds.cycles is not None:
            cycles = linear(lambda numbers: _seconds(numbers).cycles or 0.0)
        roofline = linear(lambda numbers: _seconds(numbers).roofline)
        seconds = CompiledSeconds(cycles=cycles, roofline=roofline)
    peak_bytes = temporaries_bytes = host_bytes = hbm_bytes = None
    if total.hbm_bytes is not None:
        hbm_bytes = linear(lambda numbers: numbers.hbm_bytes or 0.0)
    if total.peak_bytes is not None:
        peak_bytes = round(linear(lambda numbers: numbers.peak_bytes or 0))
        temporaries_bytes = round(linear(lambda numbers: numbers.temporaries_bytes or 0))
        host_bytes = round(linear(lambda numbers: numbers.host_bytes or 0))
    steps = (total, deeper, base)
    exposed_s = _linear_by_key([numbers.exposed_s for numbers in steps], factor)
    by_category = _linear_by_key([numbers.by_category for numbers in steps], factor)
    return CompiledNumbers(
        peak_bytes=peak_bytes,
        arguments_bytes=round(linear(lambda numbers: numbers.arguments_bytes)),
        output_bytes=round(linear(lambda numbers: numbers.output_bytes)),
        alias_bytes=round(linear(lambda numbers: numbers.alias_bytes)),
        temporaries_bytes=temporaries_bytes,
        host_bytes=host_bytes,
        capacity_bytes=total.capacity_bytes,
        flops=linear(lambda numbers: numbers.flops),
        hbm_bytes=hbm_bytes,
        step_s=seconds,
        exposed_s=exposed_s,
        by_category={category: round(n_bytes) for category, n_bytes in by_category.items()},
    )


def _seconds(numbers: CompiledNumbers) -> CompiledSeconds:
    return numbers.step_s or CompiledSeconds(cycles=0.0, roofline=0.0)


def _extrapolate_rows(
    total: Sequence[CheckedCollective],
    deeper: Sequence[CheckedCollective],
    base: Sequence[CheckedCollective],
    factor: float,
) -> tuple[CheckedCollective, ...]:
    tables = [{(row.role, row.kind): row for row in rows} for rows in (total, deeper, base)]
    extrapolated = []
    for key in {**tables[0], **tables[1], **tables[2]}:
        template = tables[0].get(key) or tables[1].get(key) or tables[2][key]
        absent = replace(template, compiled_n=0, compiled_bytes=0.0, asynchronous=0.0)
        rows = [table.get(key, absent) for table in tables]
        extrapolated.append(_extrapolate_row(rows, factor))
    return tuple(extrapolated)


def _extrapolate_row(rows: Sequence[CheckedCollective], factor: float) -> CheckedCollective:
    """The row of a total, of the deeper program and of the base, extrapolated."""

    def linear(figure: Callable[[CheckedCollective], float]) -> float:
        return _linear(list(map(figure, rows)), factor)

    compiled_bytes = linear(lambda row: row.compiled_bytes)
    asynchronous_bytes = linear(lambda row: row.compiled_bytes * row.asynchronous)
    asynchronous = 0.0
    if compiled_bytes:
        asynchronous = min(1.0, asynchronous_bytes / compiled_bytes)
    return replace(
        rows[0],
        compiled_n=round(linear(lambda row: row.compiled_n)),
        compiled_bytes=compiled_bytes,
        asynchronous=asynchronous,
    )


def _linear_by_key(tables: Sequence[Mapping[str, float]], factor: float) -> dict[str, float]:
    """Each figure of a total, of the deeper program and of the base, extrapolated."""
    keys = {key: None for table in tables for key in table}
    return {key: _linear([table.get(key, 0.0) for table in tables], factor) for key in keys}


def _linear(values: Sequence[float], factor: float) -> float:
    total, deeper, base = values
    return max(0.0, total + factor * (deeper - base))
