"""What failures take of a planned run: the best checkpoint interval and the goodput with it."""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import BadInput
from shardwise.estimate.training import optimizer
from shardwise.formulas import goodput
from shardwise.hardware import Switched
from shardwise.models import count
from shardwise.plan.schema.training import Plan, PlannedGoodput
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.problem import Case
from shardwise.units import GB, MINUTE

# No chip's file says how fast its host reaches storage. Assumed for every host that writes its part
# of a checkpoint: the share of one 25 Gb/s storage link that large sequential writes leave.
STORAGE = 2.0 * GB
RESTART_S = 10 * MINUTE  # assumed: find the failure, replace the part, load the checkpoint


def with_failures(plan: Plan, mtbf_s: float, restart_s: float = RESTART_S) -> Plan:
    """The plan with `estimate.goodput`, and its run with failures, at the best interval.

    All hosts write their part of a checkpoint at once, at `STORAGE` each, and the steps wait.

    Args:
        plan: from `shardwise.plan`, or loaded.
        mtbf_s: mean seconds between failures of one chip.
        restart_s: seconds from a failure to the first step after it.

    Raises:
        BadInput: times that cannot be. BadFile: a plan that cannot be read again.
    """
    if not mtbf_s > 0:
        raise BadInput(f"mean time between failures {mtbf_s:g} s is not above 0.")
    case = rebuild(plan)
    of_run = goodput.mtbf_of_run(mtbf_s, case.system.n_chips)
    state, hosts = checkpoint_bytes(case), n_hosts(case)
    write_s = goodput.checkpoint_write_s(state, STORAGE * hosts)
    interval = goodput.best_interval_s(of_run, write_s)
    shares = goodput.goodput(of_run, interval, write_s, restart_s)
    kept, estimate = float(shares.steps), plan.estimate
    told = PlannedGoodput(
        mtbf_s=mtbf_s,
        mtbf_of_run_s=float(of_run),
        restart_s=restart_s,
        checkpoint_bytes=state,
        storage_bytes_per_s=STORAGE * hosts,
        n_hosts=hosts,
        write_s=float(write_s),
        interval_s=float(interval),
        goodput=kept,
        writing=float(shares.writing),
        redone=float(shares.redone),
        restarting=float(shares.restarting),
        run_s=estimate.run_s / kept if estimate.run_s and kept else None,
        usd=estimate.usd / kept if estimate.usd and kept else None,
    )
    return replace(plan, estimate=replace(estimate, goodput=told))


def checkpoint_bytes(case: Case) -> float:
    """Weights, their master copy and the optimizer's moments of the whole model, once."""
    each = case.job.weight_bytes + optimizer.state_bytes(case.model, case.job)
    return count.parameters(case.model).total * each


def n_hosts(case: Case) -> int:
    """Hosts of the machine; a node of GPUs is one."""
    system = case.system
    if isinstance(system.topology, Switched):
        return system.topology.n_nodes
    return system.n_hosts or 1
