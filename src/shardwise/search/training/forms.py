"""The words of a strategy that the search tries: ZeRO, remat, schedule, way of the context."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.errors import BadShape, UnknownName, raise_all
from shardwise.models import ModelConfig
from shardwise.strategy.layout import CONTEXT_KINDS, REMAT_POLICIES, Form
from shardwise.strategy.mesh import INSIDE_OUT
from shardwise.workload import Train

# What frameworks overlap when they are told to do nothing special: gradient sums and weight
# gathers beside other layers, sends between stages beside other microbatches.
OVERLAP = ("grad_reduce", "param_gather", "pipe_p2p")
MOST_CHUNKS = 16  # of an interleaved stage: beyond it sends outweigh the bubble that is left

# GPipe takes as long as 1F1B and holds more; ZeRO-0 sends as much as ZeRO-1 and holds more.
SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")

# What may be given of a strategy beside the roles of the mesh.
NUMBERS = ("micro_batch", "n_microbatches", "virtual", "zero", "expert_tensor", "loss_chunks")
WORDS: dict[str, tuple[str, ...]] = {
    "schedule": ("none", "gpipe", *SCHEDULES),
    "remat": tuple(REMAT_POLICIES),
    "context_kind": CONTEXT_KINDS,
}

Fixed = Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class Group:
    """Layouts for which the same words make sense.

    Args:
        sharded: weights are sharded over `fsdp` or `context` (ZeRO-3).
        piped: there is a pipeline.
        cut: sequences are cut over `context`.
        even: sequences divide over `context` and `tensor`: between blocks both split them.
        copied: several chips hold the same weights, of which ZeRO can shard the state.
    """

    sharded: bool
    piped: bool
    cut: bool
    copied: bool
    even: bool

    def forms(self, config: ModelConfig, job: Train, fixed: Fixed) -> Iterator[Form]:
        """Every form of the group."""
        options: dict[str, tuple[int | str | None, ...]] = {
            "context_kind": CONTEXT_KINDS if self.cut else ("gather",),
            "expert_tensor": (None, 1) if config.is_moe else (None,),
            "remat": policies(job),
            "zero": (3,) if self.sharded else (1, 2) if self.copied else (0,),
            "schedule": SCHEDULES if self.piped else ("none",),
        }
        # What never wins is tried when it is asked for.
        also = {
            "zero": (0,) if self.copied and not self.sharded else (),
            "schedule": ("gpipe",) if self.piped else (),
        }
        allowed = {
            k: [o for o in (*some, *also.get(k, ())) if o == fixed[k]] if k in fixed else some
            for k, some in options.items()
        }
        for chosen in itertools.product(*allowed.values()):
            words = dict(zip(allowed, chosen, strict=True))
            parts = REMAT_POLICIES[words["remat"]]
            yield Form(
                loss_chunks=int(fixed.get("loss_chunks", 1)),
                **{**words, "remat": "selective" if parts else words["remat"]},
                recomputed=parts,
                sequence_parallel=self.even,
                overlap=(*OVERLAP, *job.overlap),
                offload=job.offload,
            )


def policies(job: Train) -> tuple[str, ...]:
    """The remat policies to try: the one asked for, or all."""
    return tuple(REMAT_POLICIES) if job.remat == "auto" else (job.remat,)


def check_fixed(fixed: Fixed, most: Mapping[str, int]) -> None:
    """Refuse names and values that no strategy has.

    Raises:
        UnknownName: a name or a word that is none. BadShape: a size that is no whole number from 1.
    """
    problems = []
    for name, value in (*fixed.items(), *most.items()):
        if name in WORDS and name not in most:
            if value not in WORDS[name]:
                raise UnknownName(name, str(value), WORDS[name])
        elif name not in (INSIDE_OUT if name in most else (*INSIDE_OUT, *NUMBERS)):
            raise UnknownName("mesh role", name, (*INSIDE_OUT, *NUMBERS, *WORDS))
        elif not isinstance(value, int):
            problems.append(f"{name} {value!r} is not a whole number.")
        elif value < (0 if name == "zero" else 1):
            problems.append(f"{name} {value} is below 1.")
    if fixed.get("zero", 0) not in range(4) and not problems:
        problems.append(f"zero {fixed['zero']} is not a stage of ZeRO: 0, 1, 2 or 3.")
    raise_all(BadShape, problems)
