"""Every pair of ways to split a step, on eight CPU devices: the numbers of one device.

    python bench/parity.py                  # every row: an hour on two cores
    python bench/parity.py ring zb-v        # rows whose names hold one of these words

A row trains a small dense model, or one with experts, for 20 steps on random tokens, in a process
of its own, and compares with one device by the measure of the tests (`runtime/distance.py`): each
loss, the gradients of the first step and the weights after the last. The compiled step is then
read: whether it has the collectives of its plan. Programs have the CPU compiler's least
optimizations: half of the time is the compiler's. What is found is kept in `bench/parity.json`,
row by row, and written into `docs/parity_table.md`. The last line is one JSON document.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kept import ROOT, Found, refresh

import shardwise as sw
from shardwise.models import Attention, Layer, LayerGroup, Moe
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.schedules import find
from shardwise.vocabulary import REMAT_POLICIES

sys.path.insert(0, str(ROOT))  # the steps are those of the tests

if TYPE_CHECKING:
    from shardwise.runtime.training.step import TrainStep
    from tests.unit.runtime.steps import Trained

STEPS, BATCH, SEQ, VOCAB, LAYERS = 20, 16, 32, 64, 4
ALONE = "SHARDWISE_PARITY_ALONE"  # folder of what one device did, for the rows of a run
PAGE = ROOT / "docs" / "parity_table.md"
JOB = sw.Train(
    batch=BATCH, seq=SEQ, weights="fp32", compute="fp32", gradients="fp32", moments="fp32"
)
ATTENTION = Attention(n_heads=8, n_kv_heads=4, d_head=8)
EXPERTS = Layer(attention=ATTENTION, ffn=Moe(n_experts=8, experts_per_token=2, d_ff=16))
MODELS = {
    "dense": sw.ModelConfig.dense(
        n_layers=LAYERS, d_model=32, d_ff=64, n_heads=8, n_kv_heads=4, vocab=VOCAB
    ),
    "experts": sw.ModelConfig(
        name="experts",
        d_model=32,
        vocab=VOCAB,
        groups=(LayerGroup(layer=EXPERTS, count=LAYERS),),
    ),
}
PIPED = {"pipe": 2, "n_microbatches": 4}

# Word of a row -> (what of it there can be one of, fields of the layout). A role of the mesh that
# stands without a size gets its chips from the row.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "data": ("data", {"data": 0}),
    "zero-2": ("data", {"data": 0, "zero": 2}),
    "fsdp": ("fsdp", {"fsdp": 0, "zero": 3}),
    "tensor": ("tensor", {"tensor": 0, "sequence_parallel": True}),
    "tensor-whole": ("tensor", {"tensor": 0}),
    "passing": ("tensor", {"tensor": 0, "sequence_parallel": True, "overlap": ("tp_comm",)}),
    "expert": ("expert", {"expert": 0}),
    "gather": ("context", {"context": 0}),
    "ring": ("context", {"context": 0, "context_kind": "ring"}),
    "ulysses": ("context", {"context": 0, "context_kind": "ulysses"}),
    "gpipe": ("pipe", {"schedule": "gpipe", **PIPED}),
    "1f1b": ("pipe", {"schedule": "1f1b", **PIPED}),
    "interleaved": ("pipe", {"schedule": "interleaved", "virtual": 2, **PIPED}),
    "zb-h1": ("pipe", {"schedule": "zb-h1", **PIPED}),
    "zb-v": ("pipe", {"schedule": "zb-v", **PIPED}),
    "accumulated": ("accumulated", {"n_microbatches": 2}),
    "full": ("remat", {"recomputed": REMAT_POLICIES["full"]}),
    "norms": ("remat", {"recomputed": REMAT_POLICIES["norms"]}),
}
# What stands in no square: it is the same beside all of them.
BESIDE: dict[str, dict[str, Any]] = {
    "loss_chunks": {"loss_chunks": 4},
    "activations": {"offload": ("activations",)},
    "optimizer": {"offload": ("optimizer",)},
    "host": {"offload": ("activations", "optimizer")},
}
# Ways beside which tokens that pass under products are run: all others differ from `tensor` in
# nothing that they touch.
BESIDE_PASSING = ("data", "fsdp", "expert", "ring", "accumulated", "full", "norms")
# Stands beside ways that XLA's partitioner can cut, of the dense model.
PARTITIONED = "partitioned"
WAYS[PARTITIONED] = ("collectives", {})
WITHOUT = {"dense": "expert", "experts": PARTITIONED}
BY_HAND = ("ring", "ulysses", *(way for way, (kind, _) in WAYS.items() if kind == "pipe"))
# Beside the pairs: what fits on eight devices together, and every axis at once on 32 and 64.
TOGETHER = (
    "fsdp tensor 1f1b full",
    "data fsdp tensor accumulated norms",
    "zero-2 tensor ring accumulated norms",
    "fsdp ulysses tensor accumulated full",
    "tensor ring zb-v full",
    "data gather interleaved norms",
    "data fsdp tensor accumulated norms partitioned",
    "fsdp gather tensor full partitioned",
    "expert fsdp tensor accumulated full",
    "expert zero-2 ring accumulated",
    "expert tensor zb-h1 full",
    "expert gather 1f1b norms",
    "data fsdp tensor ring zb-v full",
    "data expert fsdp tensor ring 1f1b full",
    "fsdp tensor-whole accumulated loss_chunks",
    "tensor ring full loss_chunks",
    "fsdp tensor 1f1b loss_chunks",
    "fsdp tensor accumulated activations",
    "fsdp tensor accumulated optimizer",
    "fsdp tensor accumulated host",
    "zero-2 tensor ring accumulated norms host",
    "data fsdp tensor accumulated norms partitioned host",
    "expert fsdp tensor accumulated host",
    "data fsdp tensor zb-v optimizer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model under one layout.

    Args:
        model: of `MODELS`.
        ways: of `WAYS` and `BESIDE`.
    """

    model: str
    ways: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.model}: {' x '.join(self.ways)}"

    @property
    def layout(self) -> Layout:
        """Two roles have 2 and 4 chips, stages 2 of them; one role has 4 (`data`
        where none is named), three or more 2 each."""
        fields: dict[str, Any] = {"n_microbatches": 1}
        given = [BESIDE[way] if way in BESIDE else WAYS[way][1] for way in self.ways]
        for words in given:
            fields |= {k: v for k, v in words.items() if k != "zero"}
        # Expert and data copies of weights share their update as the others say.
        fields["zero"] = max(words.get("zero", 0) for words in given)
        roles = [k for k, v in fields.items() if v == 0 and k != "zero"]
        n_roles = len(roles) + ("pipe" in fields)
        roles = roles if n_roles else ["data"]
        sizes = dict.fromkeys(roles, 2)
        if roles and n_roles < 3:
            sizes[roles[-1]] = 4
        if "pipe" in fields:
            sizes["pipe"] = fields.pop("pipe")
        shards = sizes.get("data", 1) * sizes.get("fsdp", 1) * sizes.get("expert", 1)
        fields["n_microbatches"] = min(fields["n_microbatches"], BATCH // shards)
        fields["micro_batch"] = BATCH // shards // fields["n_microbatches"]
        return Layout(mesh=Mesh(**sizes), **{k: v for k, v in fields.items() if k not in sizes})


def rows() -> Iterator[Row]:
    """Every pair of ways that may stand together, and `TOGETHER`, for every model that has them."""
    pairs = [(a, b) for a, b in itertools.combinations(WAYS, 2) if may_stand(a, b)]
    for model in MODELS:
        for ways in (*pairs, *(tuple(text.split()) for text in TOGETHER)):
            if WITHOUT[model] not in ways:
                yield Row(model=model, ways=ways)


def may_stand(a: str, b: str) -> bool:
    """Not two of a kind; weights in parts (fsdp) are ZeRO 3; microbatches of a pipeline are those
    that would be accumulated; some ways are not partitioned."""
    if "passing" in (a, b) and not {a, b} & {*BESIDE_PASSING}:
        return False
    kinds = {WAYS[a][0], WAYS[b][0]}
    if PARTITIONED in (a, b) and {a, b} & {*BY_HAND}:
        return False
    return len(kinds) == 2 and {a, b} != {"zero-2", "fsdp"} and kinds != {"pipe", "accumulated"}


def measured(row: Row) -> Found:
    """A row in numbers, or why there are none."""
    found: Found = {"name": row.name}
    start = time.perf_counter()
    try:
        found |= _measured(row)
    except sw.ShardwiseError as error:
        return {**found, "verdict": "refused", "note": error.problems[0]}
    return {**found, "row_s": round(time.perf_counter() - start, 1)}


def _measured(row: Row) -> Found:
    layout, n = row.layout, row.layout.mesh.n_chips
    from tests.xla import LEAST_COMPILE_TIME

    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{LEAST_COMPILE_TIME} --xla_force_host_platform_device_count={n}"
    import jax
    import numpy as np

    from shardwise.plan.training.rebuild import rebuild
    from shardwise.runtime.training.programs import PLANNED_CAPACITY, step_of
    from tests.host import host
    from tests.unit.runtime import steps
    from tests.unit.runtime.distance import beyond, distance

    one = alone(row.model)
    with tempfile.TemporaryDirectory() as folder:
        plan = sw.evaluate(MODELS[row.model], host(Path(folder), n), JOB, layout)
        case = rebuild(plan)
    devices = np.array(jax.devices()).reshape(1, n)
    by = "compiler" if PARTITIONED in row.ways else "plan"
    made = step_of(case, devices, make_optimizer=steps.keeping, collectives=by)
    compiled = steps.compiled(made)
    many = steps.trained(made, STEPS, compiled)
    found = distance(one, many)
    verdict = "apart" if beyond(found) else "equal"
    if layout.expert_degree > 1:  # a plan counts experts that are used alike
        made = step_of(case, devices, capacity=PLANNED_CAPACITY)
        compiled = steps.compiled(made)
    return {"verdict": verdict, **found, **sent(plan, made, compiled)}


def alone(model: str) -> Trained:
    """The same steps on one device: of a file, where a row before has left it."""
    from tests.unit.runtime import steps

    kept = Path(os.environ.get(ALONE, tempfile.gettempdir())) / f"{model}.pickle"
    if ALONE in os.environ and kept.exists():
        found: Trained = pickle.loads(kept.read_bytes())
        return found
    one = Layout(mesh=Mesh(), micro_batch=BATCH)
    made = steps.step_on(MODELS[model], JOB, one, steps.keeping)
    found = steps.trained(made, STEPS)
    if ALONE in os.environ:
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(found))
        part.rename(kept)
    return found


def sent(plan: sw.Plan, made: TrainStep, compiled: Any) -> Found:
    """What the program sends, held against its plan as `shardwise check` does it."""
    from shardwise.check import comparison
    from shardwise.check.hlo.collectives import collectives
    from shardwise.check.hlo.loops import count_runs
    from shardwise.check.hlo.text import parse
    from shardwise.runtime.training.ticks import branch_counts, ticks

    module, layout, sides = parse(compiled.as_text()), made.layout, {}
    if made.stages:
        order = find(layout.schedule).order(
            layout.sizes["pipe"], layout.n_microbatches, made.stages.order.shape[1]
        )
        sides = branch_counts(ticks(order))
    found = collectives(module, dict(made.table.mesh.jax_mesh.shape), count_runs(module, sides))
    pairs = comparison.compare_collectives(plan, found)
    lost = comparison.missing_roles(pairs)
    apart = comparison.collective_differences(pairs, layout.n_microbatches)
    return {
        "collectives": f"missing: {', '.join(lost)}" if lost else "more" if apart else "as planned",
        "differences": [one.text for one in apart],
        "kinds": len([p for p in pairs if p.planned_n]),
    }


def table(found: list[Found]) -> str:
    """A square of pairs for each model, then what stands together, then what is not equal."""
    by_name = {one["name"]: one for one in found}
    lines: list[str] = []
    for model in MODELS:
        mine = [one for one in found if one["name"].startswith(f"{model}:")]
        every = sum(row.model == model for row in rows())
        lines += [
            f"{model}: {told(mine)} ({every - len(mine)} not run yet).",
            "",
            "```text",
            *square(model, by_name),
            "```",
            "",
        ]
    names = {row.name: row for row in rows() if len(row.ways) > 2}
    for name in [n for n in names if n in by_name]:
        one, mesh = by_name[name], names[name].layout.mesh.n_chips
        lines.append(f"- {name} ({mesh} devices): {words({**one, 'differences': []})}")
    odd = [one for one in found if one["name"] not in names and mark(one) not in "=+"]
    return "\n".join([*lines, "", *(f"- {one['name']}: {words(one)}" for one in odd)])


def told(found: list[Found]) -> str:
    """`98 layouts; furthest from one device: losses 7e-07, ...`."""
    ran = [one for one in found if "loss" in one]
    far = ", ".join(
        f"{name} {max((one[key] for one in ran), default=0):.0e}"
        for name, key in (("losses", "loss"), ("gradients", "gradient"), ("weights", "weight"))
    )
    equal = sum(one["verdict"] == "equal" for one in ran)
    return f"{equal} of {len(found)} layouts give the numbers of one device; furthest {far}"


def square(model: str, found: dict[str, Found]) -> list[str]:
    """A line a way, a column for each that it stands beside."""
    ways = [way for way in WAYS if way != WITHOUT[model]]
    lines = [" " * 16 + "".join(f"{i + 1:4}" for i in range(len(ways)))]
    for i, a in enumerate(ways):
        marks = ""
        for b in ways:
            one = found.get(Row(model=model, ways=(a, b)).name) or found.get(
                Row(model=model, ways=(b, a)).name
            )
            none = "?" if may_stand(a, b) else "."
            marks += f"{mark(one) if one else none:>4}"
        lines.append(f"{i + 1:2} {a:13}{marks}")
    return lines


def mark(one: Found) -> str:
    """`=` equal with the plan's collectives, `+` equal and sends more; else a letter."""
    if one["verdict"] != "equal":
        return str(one["verdict"][0]).upper()
    return {"as planned": "=", "more": "+"}.get(one["collectives"], "M")


def words(one: Found) -> str:
    """A row in a sentence."""
    if "loss" not in one:
        return f"{one['verdict']}: {one.get('note', '')}"
    far = f"loss {one['loss']:.0e}, gradient {one['gradient']:.0e}, weight {one['weight']:.0e}"
    return "; ".join((f"{one['verdict']} ({far})", one["collectives"], *one["differences"]))


def main(given: Sequence[str]) -> int:
    every = {row.name: row for row in rows()}
    if given[:1] == ["--row"]:
        print(json.dumps(measured(every[given[1]])))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ[ALONE] = folder
        found = refresh(
            __file__,
            every,
            list(given),
            table,
            "bench/parity.py",
            page=PAGE,
            at_once=len(os.sched_getaffinity(0)),
        )
    print(json.dumps({"rows": len(found), "table": table(found)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
