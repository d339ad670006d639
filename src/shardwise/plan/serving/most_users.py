"""The users in a closed loop that a machine does hold, where it does not hold those asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardwise import units
from shardwise.errors import NoPlan, NoStrategy
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.engine_kinds import engines_of
from shardwise.plan.serving.refusals import what_meets_bounds
from shardwise.plan.serving.traffic import estimate
from shardwise.plan.serving.traffic_search import N_CANDIDATES
from shardwise.search.serving.candidate import Candidate
from shardwise.search.serving.rank import Request, rank
from shardwise.search.serving.rule import NO_SLACK, SIMULATED_SLACK

PRECISION = 0.02  # relative, of the number of users
MAX_TRIES = 16  # deployments that are simulated, half of them with separate prefill engines


def users_refusal(
    attempts: list[tuple[Request, tuple[str, ...]]], arrivals: Arrivals | None
) -> NoStrategy:
    """The error for more users than a machine holds: how many it does, and what holds them all.

    Args:
        attempts: the requests that were refused, each with the names of the usual bounds in it.
        arrivals: the requests that are simulated; None where the bounds apply to means.
    """
    for request, usual in attempts:
        held = _most_users(request, arrivals)
        if held is None:
            continue
        n_users, deployment = held
        job = request.job
        problem = (
            f"{request.hardware.name} holds about {n_users:,} users, not {job.users:,}, with "
            f"{_bounds(request, usual, arrivals)} ({_engines(deployment)})."
        )
        return NoStrategy(problem, *what_meets_bounds(request, f"holds {job.users:,} users"))
    request, _ = attempts[-1]
    try:
        rank(replace(request, jobs=[replace(job, users=1) for job in request.jobs]), 0)
        problems = [f"{request.hardware.name} holds no user with {_bounds(request, (), arrivals)}."]
    except NoStrategy as error:
        problems = [f"{text.rstrip('.')}, with one user." for text in error.problems]
    return NoStrategy(*problems, *what_meets_bounds(request))


def _most_users(request: Request, arrivals: Arrivals | None) -> tuple[int, Candidate] | None:
    """The most users that the machine holds, and their deployment; None if it holds not one.

    If requests are simulated, means only choose the deployments to simulate: those of the most
    users that they allow, and of the most that they allow with slack.
    """
    asked = request.job.users or 1
    if arrivals is None:
        n_users = _most_by_means(request)
        return (n_users, _ranked(request, n_users)[0]) if n_users else None
    best: tuple[int, Candidate] | None = None
    for deployment in _to_simulate(request):

        def holds(n_users: int, deployment: Candidate = deployment) -> bool:
            return estimate(_with_users(deployment, n_users), arrivals, 0.0).holds

        least = best[0] if best else 0
        first = min(asked - 1, max(least + 1, int(least * (1 + PRECISION))))
        if first > least and holds(first):
            best = _largest(holds, first, asked, min(2 * first, asked - 1)), deployment
    return best


def _to_simulate(request: Request) -> list[Candidate]:
    """Deployments of the whole machine that may hold the most users, at most `MAX_TRIES`."""
    chosen: dict[str, Candidate] = {}
    for slack in (NO_SLACK, SIMULATED_SLACK):
        near = replace(request, slack=slack)
        n_users = _most_by_means(near)
        if not n_users:
            continue
        candidates = _ranked(near, n_users, N_CANDIDATES)
        for disaggregated in (False, True):
            of_kind = [c for c in candidates if (c.prefill_server is not None) == disaggregated]
            for candidate in of_kind[: MAX_TRIES // 4]:
                whole = _on_whole_machine(candidate)
                chosen.setdefault(f"{engines_of(whole)} {whole.job.weights}", whole)
    return list(chosen.values())


def _most_by_means(request: Request) -> int:
    """The most users below the job's that the machine holds by means; 0 for none."""
    return _largest(lambda n_users: bool(_ranked(request, n_users)), 0, request.job.users or 1)


def _ranked(request: Request, n_users: int, keep: int = 0) -> list[Candidate]:
    """Deployments that hold so many users by means, best first; none if there are none."""
    jobs = [replace(job, users=n_users) for job in request.jobs]
    try:
        return rank(replace(request, jobs=jobs), keep, each_prefill=keep > 0).candidates
    except NoPlan:
        return []


def _on_whole_machine(candidate: Candidate) -> Candidate:
    """The deployment with all the engines that its machine has room for."""
    if candidate.prefill_server:
        return candidate
    server = candidate.server
    return replace(candidate, server=replace(server, count=server.layout.mesh.data))


def _with_users(deployment: Candidate, n_users: int) -> Candidate:
    job = replace(deployment.job, users=n_users)
    servers = {
        name: replace(server, job=job)
        for name in ("server", "prefill_server")
        if (server := getattr(deployment, name))
    }
    return replace(deployment, **servers)


def _largest(holds: Callable[[int], bool], low: int, high: int, first: int | None = None) -> int:
    """The largest number that holds, from `low`, which does, to before `high`, which does not.

    Args:
        first: the number to try first; None for the middle.
    """
    middle = first or (low + high) // 2
    while high - low > max(1, int(PRECISION * low)):
        if not low < middle < high:
            middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
        middle = min(2 * low, (low + high) // 2) if low else high // 2
    return low


def _bounds(request: Request, usual: tuple[str, ...], arrivals: Arrivals | None) -> str:
    """The bounds: `p99 TTFT ≤ 2.00 s and TPOT ≤ 30.0 ms, of which the job gives no TTFT`."""
    percentile = f"p{100 * arrivals.at:g} " if arrivals else "mean "
    job = request.job
    words = " and ".join(_stated({"TTFT": job.ttft_s, "TPOT": job.tpot_s}))
    unstated = " and ".join(name.upper() for name in usual)
    given = f", of which the job gives no {unstated}" if usual else ""
    return f"{percentile}{words}{given}"


def _stated(bounds: dict[str, float | None]) -> Iterator[str]:
    for name, seconds in bounds.items():
        if seconds:
            yield f"{name} ≤ {units.show_seconds(seconds)}"


def _engines(deployment: Candidate) -> str:
    """The engines in short: `2 × tensor 4, and 3 × tensor 2 for prompts`."""
    texts = []
    for server in (deployment.server, deployment.prefill_server):
        if server:
            mesh = replace(server.layout.mesh, data=1)
            texts.append(f"{server.count} × {mesh}" if server.count > 1 else f"{mesh}")
    return f"{texts[0]}, and {texts[1]} for prompts" if len(texts) > 1 else texts[0]
