"""Goodput of a planned run with chip failures, at the best checkpoint interval."""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import BadInput
from shardwise.estimate.training.optimizer import bytes_per_parameter
from shardwise.formulas import goodput
from shardwise.hardware import Switched
from shardwise.models import count
from shardwise.models.token_prediction import mtp_parameters
from shardwise.plan.schema.training import Plan, PlannedGoodput
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.problem import Case
from shardwise.units import GB, MINUTE

# Bytes/s at which a host writes its part of a checkpoint. Chip files do not state it. It is assumed
# to be what large sequential writes reach on a storage link of 25 Gb/s.
STORAGE = 2.0 * GB
RESTART_S = 10 * MINUTE  # assumed: detect the failure, replace the part, load the checkpoint


def with_failures(plan: Plan, mtbf_s: float, restart_s: float = RESTART_S) -> Plan:
    """Copy of the plan with `estimate.goodput`: the run with failures and optimal checkpoints.

    All hosts write their parts of a checkpoint at the same time, each at `STORAGE` bytes/s.
    Meanwhile training stops.

    Args:
        plan: from `shardwise.plan`, or loaded from a file.
        mtbf_s: mean seconds between two failures of one chip.
        restart_s: seconds from a failure to the next new step.

    Raises:
        BadInput: `mtbf_s` is not positive.
        BadFile: the inputs of the plan cannot be rebuilt.
    """
    if not mtbf_s > 0:
        raise BadInput(f"mean time between failures {mtbf_s:g} s must be positive.")
    case = rebuild(plan)
    mtbf_of_run_s = goodput.mtbf_of_run(mtbf_s, case.system.n_chips)
    n_bytes = checkpoint_bytes(case)
    storage_bytes_per_s = STORAGE * n_hosts(case)
    write_s = goodput.checkpoint_write_s(n_bytes, storage_bytes_per_s)
    interval_s = goodput.best_interval_s(mtbf_of_run_s, write_s)
    shares = goodput.goodput(mtbf_of_run_s, interval_s, write_s, restart_s)
    goodput_share = float(shares.steps)
    estimate = plan.estimate
    planned_goodput = PlannedGoodput(
        mtbf_s=mtbf_s,
        mtbf_of_run_s=float(mtbf_of_run_s),
        restart_s=restart_s,
        checkpoint_bytes=n_bytes,
        storage_bytes_per_s=storage_bytes_per_s,
        n_hosts=n_hosts(case),
        write_s=float(write_s),
        interval_s=float(interval_s),
        goodput=goodput_share,
        writing=float(shares.writing),
        redone=float(shares.redone),
        restarting=float(shares.restarting),
        run_s=estimate.run_s / goodput_share if estimate.run_s and goodput_share else None,
        usd=estimate.usd / goodput_share if estimate.usd and goodput_share else None,
    )
    return replace(plan, estimate=replace(estimate, goodput=planned_goodput))


def checkpoint_bytes(case: Case) -> float:
    """Bytes of a checkpoint: the weights, their master copy and the optimizer's moments, once."""
    components = bytes_per_parameter(case.model, case.job)
    n_parameters = count.parameters(case.model).total
    n_parameters += case.job.mtp_layers * mtp_parameters(case.model)
    return n_parameters * (components["weights"] + components["optimizer"])


def n_hosts(case: Case) -> int:
    """Number of hosts of the machine; each node of GPUs has one."""
    system = case.system
    if isinstance(system.topology, Switched):
        return system.topology.n_nodes
    return system.n_hosts or 1
