"""A plan.json whose numbers cannot be, or whose facts contradict one another, is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadFile
from shardwise.hardware.chip import with_values
from shardwise.plan import decode, encode
from shardwise.plan.schema.validation import number_problems

MODEL = sw.model("qwen2-0.5b")


@pytest.fixture(scope="module")
def training() -> bytes:
    job = sw.Train(batch=8, seq=256, tokens=1e9)
    return encode(sw.plan(MODEL, sw.hardware("h100:2"), job, {"data": 2}))


@pytest.fixture(scope="module")
def serving() -> bytes:
    job = sw.Serve(prompt=512, output=128, rate=5.0)
    return encode(sw.plan(MODEL, sw.hardware("v5e:2x2"), job))


def problems_of(text: bytes, *edits: tuple[str, Any]) -> str:
    """What is said of a plan in which the values at some paths are others; ... deletes one."""
    document = json.loads(text)
    for path, value in edits:
        owner = document
        # The keys of figures have a dot.
        keys = path.split("/")
        for key in keys[:-1]:
            owner = owner[int(key) if isinstance(owner, list) else key]
        if value is ...:
            del owner[keys[-1]]
        else:
            owner[keys[-1]] = value
    with pytest.raises(BadFile) as error:
        decode(json.dumps(document), "plan.json")
    assert all(problem.startswith("plan.json: ") for problem in error.value.problems)
    return str(error.value)


TRAINING = [
    ("hardware/figures/hbm.bandwidth", -8e11, "$.hardware.figures.hbm.bandwidth is -8e+11; it can"),
    ("hardware/figures/hbm.bandwidth", 0, "$.hardware.figures.hbm.bandwidth is 0; it must be abo"),
    ("hardware/figures/hbm.capacity", 0, "$.hardware.figures.hbm.capacity is 0; it must be above"),
    ("hardware/figures/node.egress", 0, "$.hardware.figures.node.egress is 0; it must be above 0"),
    ("hardware/figures/core.clock", 0, "$.hardware.figures.core.clock is 0; it must be above 0."),
    ("hardware/figures/peak.bf16", 0.0, "$.hardware.figures.peak.bf16 is 0; it must be above 0."),
    ("hardware/figures/peak.bf17", 1.0, "unknown figure $.hardware.figures.peak.bf17. Close: "),
    ("hardware/figures/sm.count", 1.5, "$.hardware.figures.sm.count is 1.5; it must be a whole"),
    ("hardware/figures/node.gpus", 4, "$.hardware.figures.node.gpus is 4; the machine has 8."),
    ("hardware/figures/node.gpus", ..., "$.hardware.figures.node.gpus is null; the machine has 8"),
    ("hardware/figures/node.in_network_reduction", 7, "1 is yes and 0 is no."),
    ("hardware/name", "zzz:2", '$.hardware.name: unknown chip "zzz"'),
    ("hardware/name", "h100:4", '$.hardware.n_chips is 2; that of $.hardware.name "h100:4" is 4.'),
    ("hardware/chip", "h200", '$.hardware.chip is "h200"; that of $.hardware.name "h100:2" is "h1'),
    ("hardware/slices", 3, "$.hardware.slices is 3; that of"),
    ("model/n_layers", 25, "$.model.n_layers is 25; that of its architecture is 24."),
    ("model/n_parameters", 7, "$.model.n_parameters is 7; that of its architecture is 494,032,768"),
    ("model/architecture/name", ["a"], "$.model.architecture: name: Expected `str`, got `array`"),
    ("model/architecture/groups/0/layer/attention", None, "$.model.n_heads is 14; that of its ar"),
    ("model/architecture/groups/0/layer", "zzz", "groups[0].layer is not an object"),
    ("workload/kind", "zzz", "Invalid enum value 'zzz' - at `$.workload.kind`"),
    ("workload/tokens_per_step", 7, "$.workload.tokens_per_step is 7; batch x seq is 2,048."),
    ("workload/batch", 7, "$.workload.batch is 7; micro_batch 4 x n_microbatches 1 x 2 shards is"),
    ("strategy/micro_batch", 7, "$.workload.batch is 8; micro_batch 7 x n_microbatches 1 x 2 sha"),
    ("strategy/loss_chunks", 1e30, "$.strategy.loss_chunks is 1e+30; no number of a plan reaches"),
    ("strategy/loss_chunks", 7, "$.strategy: loss_chunks 7 does not divide the 1,024 tokens of a"),
    ("strategy/mesh/data", 1e30, "$.strategy.mesh.data is 1e+30; no number of a plan reaches 1e+"),
    ("strategy/mesh/data", 1, "data"),
    ("strategy/mesh/data", ..., "$.strategy.mesh lacks the key data."),
    ("strategy/mesh/dota", 1, 'unknown key $.strategy.mesh.dota. Close: "data".'),
    ("strategy/placement", {}, '$.strategy.placement is {}; that of the mesh is {"data": "2 in th'),
    ("strategy/rules/activations.B", ["tensor"], "$.strategy.rules is "),
    ("strategy/precision/compute", ..., "$.strategy.precision lacks the key compute."),
    ("strategy/precision/weights", None, "$.strategy.precision.weights is null; that of the job"),
    ("strategy/precision/compute", "bf17", '$.workload or $.strategy.precision: unknown dtype "b'),
    (
        "strategy/fixed/tensor",
        "x",
        "$.strategy.fixed or $.strategy.most: tensor 'x' is not a whole",
    ),
    ("estimate/bound", "zzz", "Invalid enum value 'zzz' - at `$.estimate.bound`"),
    ("estimate/compute_s", 7, "$.estimate.compute_s is 7; the sum of the operations' math_s is 0."),
    ("estimate/step_s/lower", 7, "lower, expected and upper are above 0 and ascend."),
    ("estimate/expected_s/layers", 7, "; the sum of expected_s is 7."),
    ("estimate/tokens_per_s", 7, "$.estimate.tokens_per_s is 7; that of the step is "),
    ("estimate/mfu", 7, "$.estimate.mfu is 7; a share is at most 1."),
    ("estimate/usd", 7, "$.estimate.usd is 7; that of the steps of all tokens is "),
    ("estimate/at_mfu/run_s", None, "$.estimate.at_mfu.run_s is null; that of the steps of all"),
    ("estimate/memory_bytes_per_chip/total", 7, "memory_bytes_per_chip.total is 7; the sum of"),
    ("estimate/state_bytes_per_parameter", 7, "state_bytes_per_parameter is 7; that of the dtypes"),
]
SERVING = [
    ("hardware/figures/hbm.capacity", 1, "figures.hbm.capacity is 1; no sequence fits an engine."),
    ("strategy/precision/kv", ..., "$.strategy.precision lacks the key kv."),
    ("strategy/n_chips", 0, "$.strategy.n_chips is 0; count x n_chips of the engines is 1."),
    ("strategy/n_chips", 1e30, "$.strategy.n_chips is 1e+30; no number of a plan reaches 1e+27."),
    ("strategy/searched", "zzz", "Invalid enum value 'zzz' - at `$.strategy.searched`"),
    ("strategy/disaggregated", True, "$.strategy.disaggregated is true; whether there are prefi"),
    ("strategy/mesh/tensor", 2, "$.strategy.mesh is "),
    ("strategy/servers/count", 0, "$.strategy.servers.count is 0; that of its mesh, data is 1."),
    ("strategy/servers/count", 1e30, "$.strategy.servers.count is 1e+30; no number of a plan rea"),
    ("strategy/servers/n_chips", 0, "$.strategy.servers.n_chips is 0; that of its mesh is 1."),
    ("strategy/servers/mesh/data", 0, "$.strategy.servers: data 0 is below 1."),
    ("strategy/servers/hardware", "v5e:4x4", 'name is "v5e:2x2"; that of $.strategy.servers is'),
    ("strategy/servers/weights", "zzz", '$.strategy.servers: unknown weights "zzz"'),
    ("strategy/servers/rules", {"weights.D": ["fsdp"]}, "$.strategy.servers.rules is {"),
    ("strategy/servers/placement", {"tensor": "x"}, "$.strategy.servers: v5e:2x2 has no placement"),
    ("estimate/bound", "zzz", "Invalid enum value 'zzz' - at `$.estimate.bound`"),
    ("estimate/decode/batch", 0, "$.estimate.decode.batch is 0; it is from 1 to "),
    ("estimate/decode/batch", 1e30, "$.estimate.decode.batch is 1e+30; no number of a plan rea"),
    ("estimate/decode/in_flight", 3, "$.estimate.decode.in_flight is 3; it is from 1 to 2"),
    ("estimate/decode/context", 7, "$.estimate.decode.context is 7; the mean is 576."),
    ("estimate/prefill/step_s/lower", 0, "$.estimate.prefill.step_s is 0, "),
    ("estimate/prefill/parts", {}, "$.estimate.prefill.step_s.expected is 0.00"),
    ("estimate/tokens_per_s", 7, "$.estimate.tokens_per_s_per_chip is 640; tokens_per_s over n_"),
    ("workload/context", 7, "$.workload or $.strategy.precision: context 7 is not prompt 512"),
]


@pytest.mark.parametrize(("path", "value", "told"), TRAINING)
def test_a_training_plan_that_cannot_be(training: bytes, path: str, value: Any, told: str) -> None:
    assert told in problems_of(training, (path, value))


@pytest.mark.parametrize(("path", "value", "told"), SERVING)
def test_a_serving_plan_that_cannot_be(serving: bytes, path: str, value: Any, told: str) -> None:
    assert told in problems_of(serving, (path, value))


def test_all_problems_are_told_at_once(training: bytes) -> None:
    told = problems_of(training, ("model/n_layers", 7), ("workload/tokens_per_step", 7))
    assert "$.model.n_layers" in told
    assert "$.workload.tokens_per_step" in told


def test_the_figures_of_another_chip(training: bytes) -> None:
    told = problems_of(
        training,
        ("hardware/figures", json.loads(training)["hardware"]["figures"]),
        ("hardware/name", "h200:2"),
        ("hardware/chip", "h200"),
    )
    assert '$.hardware.chip is "h200"; $.hardware.figures are those of "h100".' in told


def test_figures_that_a_user_changed_are_read() -> None:
    system = sw.hardware("v5e:2x2,hbm=32GiB")
    plan = sw.plan(MODEL, system, sw.Train(batch=8, seq=256))
    assert decode(encode(plan)) == plan


def test_a_figure_that_is_gone_is_named_where_it_is_needed(training: bytes) -> None:
    document = json.loads(training)
    for figure in ("hbm.capacity", "hbm.bandwidth", "node.egress", "peak.bf16"):
        changed = json.loads(training)
        del changed["hardware"]["figures"][figure]
        with pytest.raises(sw.ShardwiseError, match=f"no figure for .*{figure.split('.')[1]}"):
            sw.explain(decode(json.dumps(changed)), search=False)  # type: ignore[call-overload]
    del document["hardware"]["figures"]["core.clock"]
    sw.explain(decode(json.dumps(document)), search=False)  # type: ignore[call-overload]


def test_a_removed_peak_is_unknown() -> None:
    chip = with_values(sw.hardware("h100:2").chip, {"peak.bf16": None})
    assert "bf16" not in chip.peak_flops_per_s


def test_depth_and_numbers_of_a_document() -> None:
    assert number_problems({"a": [1, -2.5], "amount": -1, "b": {"c": 2e27}, "d": True}) == [
        "$.a[1] is -2.5; it cannot be below 0.",
        "$.b.c is 2e+27; no number of a plan reaches 1e+27.",
    ]
