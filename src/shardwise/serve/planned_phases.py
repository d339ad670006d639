"""The prefill engines and the decode engines of a disaggregated plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwise.errors import BadInput, raise_all
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.unserved import unserved
from shardwise.search.serving.candidate import Candidate, Server

if TYPE_CHECKING:
    from shardwise.runtime.serving.engine_state import EngineState

PROMPTS_AT_A_TIME = 16  # of a prefill engine


def disaggregated_states(
    plan: ServingPlan, phase: str
) -> tuple[list[EngineState], list[EngineState]]:
    """The prefill engines and the decode engines of a plan, each on devices of its own.

    Args:
        phase: `prefill` or `decode` for a single engine of this phase; empty for all engines.

    Raises:
        BadInput: the runtime does not support one, or the machine does not have room for all.
    """
    deployment = rebuild(plan)[1]
    prefill_server, server = deployment.prefill_server, deployment.server
    if prefill_server is None:
        raise ValueError("the plan is not disaggregated")
    problems = [*unserved(server), *unserved(prefill_server)]
    raise_all(BadInput, list(dict.fromkeys(problems)))
    prefill = (prefill_server, PROMPTS_AT_A_TIME)
    decode = (server, deployment.batch)
    if phase == "prefill":
        return [_machine(*prefill, plan)[0]], []
    if phase == "decode":
        return [], [_machine(*decode, plan)[0]]
    wanted = [prefill] * deployment.n_prefill + [decode] * server.count
    states = _on_own_devices(wanted, plan, deployment)
    return states[: deployment.n_prefill], states[deployment.n_prefill :]


def _on_own_devices(
    wanted: list[tuple[Server, int]], plan: ServingPlan, deployment: Candidate
) -> list[EngineState]:
    """One engine for each that is wanted; the large ones get their devices first."""
    used: set[Any] = set()
    states: dict[int, EngineState] = {}
    for i in sorted(range(len(wanted)), key=lambda i: -wanted[i][0].n_chips):
        for state in _machine(*wanted[i], plan):
            devices = set(state.table.mesh.jax_mesh.devices.flat)
            if not devices & used:
                used |= devices
                states[i] = state
                break
        else:
            raise BadInput(_no_room(deployment))
    return [states[i] for i in range(len(wanted))]


def _machine(server: Server, batch: int, plan: ServingPlan) -> list[EngineState]:
    """The places of such an engine on its machine."""
    from shardwise.runtime.devices import devices_for
    from shardwise.runtime.serving.programs import engine_state

    devices = devices_for(server.system, plan.model.name, "--serve --prompt N --output N")
    n = server.layout.sizes["data"]
    return [engine_state(server, batch, devices, index) for index in range(n)]


def _no_room(deployment: Candidate) -> str:
    """What to do if the engines of a plan are not on one machine."""
    prefill_server = deployment.prefill_server or deployment.server
    server = deployment.server
    n_chips = deployment.n_prefill * prefill_server.n_chips + server.count * server.n_chips
    chip = server.rates.chip.name
    return (
        f"{deployment.n_prefill} prefill engines of {prefill_server.n_chips} chips on "
        f"{prefill_server.system.name} and {server.count} decode engines of {server.n_chips} on "
        f"{server.system.name} are not on {n_chips} chips of one machine. Plan for such a machine: "
        f"shardwise plan MODEL {chip}:{n_chips}; or run a server for each engine, with --prefill "
        "and with --prefill-from URL."
    )
