"""Every legal strategy of a job, one by one and without the search, to hold the search against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import strategies as st

from shardwise.errors import NoStrategy
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.model_sizes import MIN_TOKENS_PER_CHIP, divisors
from shardwise.search.training.forms import MAX_CHUNKS
from shardwise.search.training.legal import problems
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh, place
from shardwise.strategy.schedules import find, names
from shardwise.strategy.stages import MIN_FILLED_SHARE
from shardwise.vocabulary import DEFAULT_OVERLAPS, REMAT_POLICIES
from shardwise.workload import Train

ROLES = ("tensor", "context", "expert", "fsdp", "data")


def every_mesh(config: ModelConfig, system: System, job: Train) -> Iterator[Mesh]:
    """Every mesh of all chips against which nothing is said, and that lies on the machine."""
    for sizes in itertools.product(divisors(system.n_chips), repeat=len(ROLES)):
        rest = system.n_chips
        for size in sizes:
            if rest % size:
                break
            rest //= size
        else:
            found = {**dict(zip(ROLES, sizes, strict=True)), "pipe": rest}
            few_tokens = found["context"] > 1 and job.seq < found["context"] * MIN_TOKENS_PER_CHIP
            if few_tokens or problems(config, system, job, found, whole=True):
                continue
            try:
                place(system, found)
            except NoStrategy:
                continue
            yield Mesh(**found)


def cuts(job: Train, mesh: Mesh) -> Iterator[tuple[int, int]]:
    """(sequences of a microbatch, microbatches) of one data shard."""
    each = job.batch // (mesh.data * mesh.fsdp * mesh.expert)
    return ((b, each // b) for b in range(1, each + 1) if each % b == 0)


def pipelines(config: ModelConfig, mesh: Mesh, microbatches: int) -> Iterator[tuple[str, int]]:
    """(schedule, chunks of an interleaved stage) that run so many microbatches."""
    if mesh.pipe == 1:
        yield "none", 1
        return
    for name in names():
        schedule = find(name)
        several = range(2, min(MAX_CHUNKS, config.n_layers // 2) + 1)
        for chunks in [schedule.chunks] if schedule.chunks else several:
            parts = schedule.parts(mesh.pipe, chunks)
            places = -(-config.n_layers // parts) * parts
            filled = config.n_layers >= MIN_FILLED_SHARE * places
            if filled and schedule.legal(mesh.pipe, microbatches, chunks):
                yield name, 1 if schedule.chunks else chunks


def zeros(mesh: Mesh) -> tuple[int, ...]:
    """Stages of ZeRO that a mesh can have: with fsdp weights are sharded."""
    if mesh.fsdp > 1:
        return (3,)
    return (0, 1, 2, 3) if mesh.context > 1 else (0, 1, 2)


def context_kinds(config: ModelConfig, mesh: Mesh) -> tuple[str, ...]:
    """Heads can be exchanged where every chip has whole ones."""
    if mesh.context == 1:
        return ("gather",)
    ways = mesh.tensor * mesh.context
    heads = [attention for attention, _ in config.attentions]
    whole = all(
        a.n_heads % ways == 0 and (a.mla or a.n_kv_heads % ways == 0 or ways % a.n_kv_heads == 0)
        for a in heads
    )
    return ("gather", "ring", "ulysses") if whole else ("gather", "ring")


def words(config: ModelConfig, job: Train, mesh: Mesh) -> Iterator[dict[str, object]]:
    """Everything that is no number of a layout, but its schedule."""
    policies = tuple(REMAT_POLICIES) if job.remat == "auto" else (job.remat,)
    experts = (None, 1) if config.is_moe and mesh.tensor > 1 else (None,)
    even = job.seq % (mesh.tensor * mesh.context) == 0
    for zero, policy, kind, ways in itertools.product(
        zeros(mesh), policies, context_kinds(config, mesh), experts
    ):
        yield {
            "zero": zero,
            "recomputed": REMAT_POLICIES[policy],
            "context_kind": kind,
            "expert_tensor": ways,
            "sequence_parallel": mesh.tensor > 1 and even,
            "overlap": (*DEFAULT_OVERLAPS, *job.overlap),
            "offload": job.offload,
        }


def every_layout(config: ModelConfig, system: System, job: Train) -> Iterator[Layout]:
    """Every legal layout of a job."""
    for mesh in every_mesh(config, system, job):
        forms = list(words(config, job, mesh))
        for b, n in cuts(job, mesh):
            for schedule, virtual in pipelines(config, mesh, n):
                for form in forms:
                    yield Layout(
                        **form,  # type: ignore[arg-type]
                        mesh=mesh,
                        micro_batch=b,
                        n_microbatches=n,
                        schedule=schedule,
                        virtual=virtual,
                    )


@st.composite
def layouts(
    draw: st.DrawFn, config: ModelConfig, system: System, job: Train, meshes: list[Mesh]
) -> Layout:
    """A legal layout: a mesh of `every_mesh` first, so that each is as likely."""
    mesh = draw(st.sampled_from(meshes))
    runs = [
        (b, n, schedule, virtual)
        for b, n in cuts(job, mesh)
        for schedule, virtual in pipelines(config, mesh, n)
    ]
    b, n, schedule, virtual = draw(st.sampled_from(runs))
    form = draw(st.sampled_from(list(words(config, job, mesh))))
    return Layout(
        **form,
        mesh=mesh,
        micro_batch=b,
        n_microbatches=n,
        schedule=schedule,
        virtual=virtual,
    )
