"""Validate a serving plan as a whole: it can be rebuilt, and its facts agree with one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwise.errors import BadFile, raise_all
from shardwise.plan.machine import describe_links, errors_at
from shardwise.plan.schema.serving import Decode, PlannedEngines, ServingPlan
from shardwise.plan.schema.validation import (
    Fact,
    check_keys,
    disagreements,
    memory_facts,
    model_facts,
    range_problems,
    shown,
)
from shardwise.plan.serving.rebuild import rebuild
from shardwise.search.serving.candidate import Server
from shardwise.search.serving.layouts import read_fixed
from shardwise.strategy.mesh import ROLES, Mesh
from shardwise.strategy.serving_layout import ServeLayout, serve_rules
from shardwise.workload import Serve

DTYPES = ("weights", "kv", "compute")


def plan_problems(plan: ServingPlan) -> list[str]:
    """Problems of a plan: each names the key, its value, and what it must be.

    Raises:
        BadFile: a part of the plan cannot be rebuilt.
    """
    check_keys("$.strategy.precision", plan.strategy.precision, DTYPES)
    with errors_at("$.strategy.fixed or $.strategy.most"):
        read_fixed(plan.strategy.fixed, plan.strategy.most)
    engines = {"$.strategy.servers": plan.strategy.servers}
    if plan.strategy.prefill:
        engines["$.strategy.prefill"] = plan.strategy.prefill
    facts = [*_deployment_facts(plan, engines)]
    for path, each in engines.items():
        facts += _engine_facts(path, each)
    raise_all(BadFile, [*disagreements(facts)])
    request, chosen = rebuild(plan)
    links = [*_link_facts("$.strategy.servers", plan.strategy.servers, chosen.server)]
    if plan.strategy.prefill and chosen.prefill_server:
        links += _link_facts("$.strategy.prefill", plan.strategy.prefill, chosen.prefill_server)
    estimate = plan.estimate
    return [
        *disagreements(model_facts(plan, request.config)),
        *disagreements(links),
        *_batch_problems(estimate.decode, chosen.server),
        *range_problems("$.estimate.decode.step_s", estimate.decode.step_s),
        *range_problems("$.estimate.prefill.step_s", estimate.prefill.step_s),
        *disagreements(_estimate_facts(plan, chosen.job)),
    ]


def _deployment_facts(plan: ServingPlan, engines: Mapping[str, PlannedEngines]) -> Iterator[Fact]:
    strategy = plan.strategy
    servers = strategy.servers
    of_servers = "that of $.strategy.servers"
    yield Fact("$.strategy.mesh", strategy.mesh, of_servers, servers.mesh)
    yield Fact("$.hardware.name", plan.hardware.name, of_servers, servers.hardware)
    n_chips = strategy.engine_chips
    if strategy.searched == "chip" or not n_chips <= strategy.n_chips <= plan.hardware.n_chips:
        source = "count x n_chips of the engines"
        yield Fact("$.strategy.n_chips", strategy.n_chips, source, n_chips)
    has_prefill = strategy.prefill is not None
    source = "whether there are prefill engines"
    yield Fact("$.strategy.disaggregated", strategy.disaggregated, source, has_prefill)


def _engine_facts(path: str, engines: PlannedEngines) -> Iterator[Fact]:
    """Yield the facts of engines, which follow from their mesh."""
    check_keys(f"{path}.mesh", engines.mesh, ROLES)
    with errors_at(path):
        layout = ServeLayout(
            mesh=Mesh(**engines.mesh),
            weights=engines.weights,
            kv=engines.kv,
            expert_tensor=engines.expert_tensor,
        )
    rules = dict(serve_rules(layout))
    yield Fact(f"{path}.count", engines.count, "that of its mesh, data", layout.mesh.data)
    yield Fact(f"{path}.n_chips", engines.n_chips, "that of its mesh", layout.n_chips)
    yield Fact(f"{path}.rules", engines.rules, "that of its mesh", rules)


def _link_facts(path: str, engines: PlannedEngines, server: Server) -> Iterator[Fact]:
    """Yield the links of the engines' mesh; those of `data`, which counts engines, may differ."""
    links = describe_links(server.placement, {**engines.mesh, "data": 1})
    stated = {role: text for role, text in engines.placement.items() if role != "data"}
    yield Fact(f"{path}.placement", stated, "that of its mesh", links)


def _batch_problems(decode: Decode, server: Server) -> Iterator[str]:
    """Yield a problem if the sequences of an engine are none, or more than fit."""
    path = "$.estimate.decode"
    if server.max_batch < 1:
        capacity = shown(server.rates.chip.need("hbm.capacity"))
        yield f"$.hardware.figures.hbm.capacity is {capacity}; no sequence fits an engine."
    limits = {"batch": decode.max_batch, "in_flight": decode.batch}
    for key, most in limits.items():
        n = getattr(decode, key)
        if not 1 <= n <= most:
            yield f"{path}.{key} is {shown(n)}; it is from 1 to {shown(most)}, as many as fit."


def _estimate_facts(plan: ServingPlan, job: Serve) -> Iterator[Fact]:
    estimate = plan.estimate
    yield Fact("$.estimate.decode.context", estimate.decode.context, "the mean", job.mean_context)
    for path, each in (("decode", estimate.decode), ("prefill", estimate.prefill)):
        parts_s = sum(each.parts.values())
        step_s = each.step_s.expected
        yield Fact(f"$.estimate.{path}.step_s.expected", step_s, "the sum of its parts", parts_s)
    if estimate.tpot_parts and not estimate.traffic:
        parts_s = sum(estimate.tpot_parts.values())
        yield Fact("$.estimate.tpot_s", estimate.tpot_s, "the sum of its tpot_parts", parts_s)
    yield Fact("$.estimate.bound", estimate.bound, "that of decode", estimate.decode.bound)
    rate = estimate.tokens_per_s / plan.strategy.n_chips
    stated = estimate.tokens_per_s_per_chip
    yield Fact("$.estimate.tokens_per_s_per_chip", stated, "tokens_per_s over n_chips", rate)
    yield from memory_facts("$.estimate.memory_bytes_per_chip", estimate.memory_bytes_per_chip)
    if estimate.prefill_memory_bytes_per_chip:
        path = "$.estimate.prefill_memory_bytes_per_chip"
        yield from memory_facts(path, estimate.prefill_memory_bytes_per_chip)
