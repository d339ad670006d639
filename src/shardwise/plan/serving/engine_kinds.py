"""Which engines of deployments are equal, and their entries in a plan."""

from __future__ import annotations

from dataclasses import replace

from shardwise.plan.schema.traffic import Engines
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.strategy.serving_layout import ServeLayout

EngineKind = tuple[bool, ServeLayout, int, str]


def engine_kind(server: Server, candidate: Candidate) -> EngineKind:
    """What makes engines equal: whether they only prefill, layout, chips and weight dtype."""
    return (
        server is candidate.prefill_server,
        one_engine(server),
        server.n_chips,
        server.job.weights,
    )


def one_engine(server: Server) -> ServeLayout:
    """The layout of one engine, without the number of engines."""
    return replace(server.layout, mesh=replace(server.layout.mesh, data=1))


def engines_of(candidate: Candidate) -> tuple[Engines, Engines | None]:
    """The entries of the decode engines, and of separate prefill engines, in a plan."""
    prefill = _engines_entry(candidate.prefill_server) if candidate.prefill_server else None
    return _engines_entry(candidate.server), prefill


def _engines_entry(server: Server) -> Engines:
    layout = server.layout
    return Engines(
        count=server.count,
        mesh={**layout.sizes, "data": 1},
        weights=layout.weights,
        kv=layout.kv,
        expert_tensor=layout.expert_tensor,
        hardware=server.system.name,
    )
