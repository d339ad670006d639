"""A plan proved on less than all of it: on a smaller machine, or by two shallower models.

A chip's program does not change with the number of copies of the model: `data` can be cut. And a
model is a scan over layers: what its program computes and sends grows by the same with each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shardwise.check.training import How, Sides, compiled_sides, verdict_of
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

LINEAR = (
    "What a scan over layers computes and sends grows by the same with each; seconds and the peak "
    "of memory are approximate."
)
UNROLLED = "One layer is no loop to the compiler: two and three are surer of the seconds."


def smaller(plan: Plan, on: str) -> tuple[Plan, str]:
    """The same plan on a machine with fewer chips along `data`, and a sentence that says so.

    Raises:
        BadInput: no machine of that size has the other axes whole.
    """
    case, system = rebuild(plan), parse_system(on)
    sizes = case.layout.sizes
    rest = case.system.n_chips // sizes["data"]
    data = system.n_chips // rest
    if system.chip.name != case.system.chip.name:
        raise BadInput(f"the plan is for {case.system.chip.name}, and {on} is of another chip.")
    if system.n_chips % rest or not 1 <= data <= sizes["data"] or sizes["data"] % data:
        most = [f"{rest * n:,}" for n in range(1, sizes["data"]) if sizes["data"] % n == 0]
        told = f"with {', '.join(most[:8])} chips" if most else "nowhere smaller"
        raise BadInput(
            f"{on} has {system.n_chips:,} chips. Only data ({sizes['data']}) can be cut, the other "
            f"axes take {rest:,} chips: the program of a chip is the same {told}."
        )
    job = replace(case.job, batch=case.job.batch * data // sizes["data"])
    layout = replace(case.layout, mesh=Mesh(**{**sizes, "data": data}))
    found = evaluate(case.model, system, job, layout, peak=case.peak)
    note = f"Compiled on {on}, data {data} in the place of {sizes['data']} on {case.system.name}."
    return found, note


def extrapolated(plan: Plan, layers: Sequence[int], how: How, note: str = "") -> Verdict:
    """Prove a plan by programs of two depths.

    Args:
        layers: the two depths, in layers of each kind (on each stage of a pipeline).

    Raises:
        BadInput: not two depths, one that is not shallower, or kinds of layers in a pipeline.
    """
    case = rebuild(plan)
    counts = [group.count for group in case.model.groups]
    unit = case.layout.sizes["pipe"] * case.layout.virtual
    low, high = _depths(layers, counts, unit)
    base = compiled_sides(at_depth(plan, case.model, [min(low * unit, n) for n in counts]), how)
    total = base
    for i, n in enumerate(counts):
        if n <= low * unit:
            continue
        deeper = [min(low * unit, m) for m in counts]
        deeper[i] = min(high * unit, n)
        one = compiled_sides(at_depth(plan, case.model, deeper), how)
        steps = (n - low * unit) / (deeper[i] - low * unit)
        total = _added(total, one, base, steps)
    told = (
        f"Compiled with {low} and {high} layers of each kind"
        f"{' and stage' if unit > 1 else ''} in the place of {sum(counts)}. {LINEAR}"
    )
    surer = UNROLLED if low == 1 else ""
    return verdict_of(plan, _judged(total), " ".join(filter(None, (note, told, surer))))


def at_depth(plan: Plan, model: ModelConfig, counts: Sequence[int]) -> Plan:
    """The plan of a model with other counts of its kinds of layers; its numbers stay."""
    groups = tuple(replace(g, count=n) for g, n in zip(model.groups, counts, strict=True))
    shallow = replace(model, groups=groups, order=respread(model.order, counts))
    return replace(plan, model=planned_model(shallow))


def _depths(layers: Sequence[int], counts: Sequence[int], unit: int) -> tuple[int, int]:
    if len(layers) != 2 or not 1 <= layers[0] < layers[1]:
        raise BadInput(
            f"{', '.join(map(str, layers))} are not two depths: write two numbers of layers, the "
            "smaller first, as 1,2."
        )
    if max(counts) < layers[1] * unit:
        raise BadInput(
            f"{layers[1] * unit} layers are no less than the model has of a kind "
            f"({', '.join(map(str, counts))}): check it whole."
        )
    if unit > 1 and len(counts) > 1:
        raise BadInput(
            "layers of several kinds in a pipeline are not extrapolated: check it whole."
        )
    return layers[0], layers[1]


def _judged(sides: Sides) -> Sides:
    """Whether the extrapolated peak fits, where the compiler can say."""
    found = sides.numbers
    if found is None or found.peak_bytes is None or not found.capacity_bytes:
        return replace(sides, fits=None)
    return replace(sides, fits=found.peak_bytes <= found.capacity_bytes)


def _added(total: Sides, deeper: Sides, base: Sides, steps: float) -> Sides:
    """`steps` times what the deeper program has more than the base, on top of a total."""
    for one in (total, deeper, base):
        if one.numbers is None or one.failure:
            raise BadInput("not even the shallow model fits: check the plan without --layers.")

    def line(of: Callable[[Sides], float]) -> float:
        return of(total) + steps * (of(deeper) - of(base))

    return replace(
        total,
        numbers=_numbers(total.numbers, deeper.numbers, base.numbers, steps),
        found=_rows(total.found, deeper.found, base.found, steps),
        attention_flops=line(lambda s: s.attention_flops),
        again_flops=line(lambda s: s.again_flops),
        buffers=(),
    )


def _numbers(
    total: CompiledNumbers | None,
    deeper: CompiledNumbers | None,
    base: CompiledNumbers | None,
    steps: float,
) -> CompiledNumbers | None:
    if total is None or deeper is None or base is None:
        return None

    def line(of: Callable[[CompiledNumbers], float]) -> float:
        return of(total) + steps * (of(deeper) - of(base))

    def table(of: Callable[[CompiledNumbers], Mapping[str, float]]) -> dict[str, float]:
        three = (of(total), of(deeper), of(base))
        names = dict.fromkeys(name for one in three for name in one)
        return {n: _line([one.get(n, 0.0) for one in three], steps) for n in names}

    seconds = total.step_s
    if seconds and deeper.step_s and base.step_s:
        cycles = None if seconds.cycles is None else line(lambda n: _seconds(n).cycles or 0.0)
        seconds = CompiledSeconds(cycles=cycles, roofline=line(lambda n: _seconds(n).roofline))
    proves = total.peak_bytes is not None
    return CompiledNumbers(
        peak_bytes=round(line(lambda n: n.peak_bytes or 0)) if proves else None,
        arguments_bytes=round(line(lambda n: n.arguments_bytes)),
        temporaries_bytes=round(line(lambda n: n.temporaries_bytes or 0)) if proves else None,
        host_bytes=round(line(lambda n: n.host_bytes or 0)) if proves else None,
        capacity_bytes=total.capacity_bytes,
        flops=line(lambda n: n.flops),
        step_s=seconds,
        exposed_s=table(lambda n: n.exposed_s),
        by_category={k: round(v) for k, v in table(lambda n: n.by_category).items()},
    )


def _seconds(numbers: CompiledNumbers) -> CompiledSeconds:
    return numbers.step_s or CompiledSeconds(cycles=0.0, roofline=0.0)


def _rows(
    total: Sequence[CheckedCollective],
    deeper: Sequence[CheckedCollective],
    base: Sequence[CheckedCollective],
    steps: float,
) -> tuple[CheckedCollective, ...]:
    tables = [{(r.role, r.kind): r for r in rows} for rows in (total, deeper, base)]
    found = []
    for key in dict.fromkeys(key for table in tables for key in table):
        rows = [table.get(key) for table in tables]
        first = next(row for row in rows if row)
        n, received, beside = (
            _line([of(row) if row else 0.0 for row in rows], steps)
            for of in (_count, _received, _beside)
        )
        found.append(
            replace(
                first,
                compiled_n=round(n),
                compiled_bytes=received,
                asynchronous=min(1.0, max(0.0, beside / received)) if received else 0.0,
            )
        )
    return tuple(found)


def _count(row: CheckedCollective) -> float:
    return row.compiled_n


def _received(row: CheckedCollective) -> float:
    return row.compiled_bytes


def _beside(row: CheckedCollective) -> float:
    return row.compiled_bytes * row.asynchronous


def _line(values: Sequence[float], steps: float) -> float:
    total, deeper, base = values
    return max(0.0, total + steps * (deeper - base))
