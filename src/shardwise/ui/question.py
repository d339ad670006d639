"""What the page asks: a model, a machine, work, and a strategy or none, as checked JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shardwise.errors import BadInput, Problems, UnknownName
from shardwise.hardware import System, parse_system
from shardwise.hardware.catalog import chip_names, has_nearest, is_chip
from shardwise.hardware.machine_names import split_name
from shardwise.hardware.scale import scaled
from shardwise.models import ModelConfig, load
from shardwise.models.presets import find
from shardwise.models.presets import names as model_names
from shardwise.plan.serving.time_parts import usual_cache, usual_compute
from shardwise.units import bytes_per_element
from shardwise.workload import (
    OPTIMIZER_MOMENTS,
    Serve,
    Train,
    state_dtypes,
)

MOST = 10**9  # of any count that the page sends
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Word = Annotated[str, Meta(min_length=1, max_length=40)]
Count = Annotated[int, Meta(ge=1, le=MOST)]
Setting = Annotated[int, Meta(ge=0, le=MOST)] | Word
Factor = Annotated[float, Meta(ge=1e-3, le=1e3)]
Positive = Annotated[float, Meta(gt=0, le=1e18)]


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request of the page; its fields are the keys of the JSON, and of the page's address.

    Args:
        kind: the work.
        batch: sequences of a training step; sequences that decode together, None for the best.
        seq: tokens of a training sequence.
        tokens: of the whole training run.
        dtype: of matmuls in training, of weights in serving.
        strategy: sizes of all mesh axes of the plan that is evaluated; None for a search. For
            serving, without `data`.
        words: settings of the strategy that are kept, as remat.
        factors: numbers of the machine -> what they are multiplied by.
        peak: whether times are at peak rates.
        job: name of a saved plan whose dtypes and optimizer are used instead of those above.
    """

    model: Name = "llama3-70b"
    hardware: Name = "v5p:16x20x28"
    kind: Literal["train", "serve"] = "train"
    batch: Count | None = None
    seq: Count = 4096
    tokens: Positive | None = None
    dtype: Word = "bf16"
    precision: Annotated[str, Meta(max_length=40)] = ""
    optimizer: Word = "adamw"
    prompt: Count = 2048
    output: Count = 512
    rate: Positive | None = None
    tpot_s: Positive | None = None
    ttft_s: Positive | None = None
    strategy: Annotated[dict[Word, Count], Meta(max_length=8)] | None = None
    words: Annotated[dict[Word, Setting], Meta(max_length=12)] = {}
    factors: Annotated[dict[Word, Factor], Meta(max_length=10)] = {}
    peak: bool = False
    job: Annotated[str, Meta(max_length=200)] = ""


# The book's example of a training run (section 6), with a batch that fills the pod.
FIRST = Question(batch=1120, tokens=15e12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a question means, as values that can be looked up in a cache."""

    model: ModelConfig
    system: System
    job: Train | Serve
    strategy: tuple[tuple[str, int], ...] | None
    words: tuple[tuple[str, int | str], ...]
    peak: bool


@dataclass(frozen=True, slots=True)
class LocalNames:
    """Models and machines that the command line named by a path; the page may use their names."""

    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    systems: Mapping[str, System] = field(default_factory=dict)
    jobs: Mapping[str, Train] = field(default_factory=dict)

    def model(self, name: str) -> ModelConfig:
        """A model by a name that is no path.

        Raises:
            UnknownName: it is none.
        """
        if name in self.models:
            return self.models[name]
        head = name.split(",")[0]
        if find(head) is None:
            raise UnknownName("model", name, (*model_names(), *self.models))
        return load(name)

    def system(self, name: str) -> System:
        """A machine by a name that is no path.

        Raises:
            BadInput: it is none.
        """
        if name in self.systems:
            return self.systems[name]
        chip, _ = split_name(name.split(",")[0])
        if not is_chip(chip) and not has_nearest(chip):
            raise UnknownName("chip", chip, (*chip_names(), *self.systems))
        return parse_system(name)


def read(question: Question, local: LocalNames) -> Inputs:
    """The inputs of a question.

    Raises:
        BadInput: with every problem.
    """
    problems = Problems()
    model = problems.read(local.model, question.model)
    system = problems.read(local.system, question.hardware)
    job: Train | Serve
    if question.kind == "train":
        job = problems.read(_training, question, local)
    else:
        job = problems.read(_serving, question, system)
    problems.done()
    if question.factors:
        system = scaled(system, question.factors)
    strategy = question.strategy
    return Inputs(
        model=model,
        system=system,
        job=job,
        strategy=None if strategy is None else tuple(sorted(strategy.items())),
        words=tuple(sorted(question.words.items())),
        peak=question.peak,
    )


def _training(question: Question, local: LocalNames) -> Train:
    if question.batch is None:
        raise BadInput("a training step needs a batch: the sequences of one step.")
    if question.job:
        if question.job not in local.jobs:
            raise UnknownName("plan", question.job, local.jobs)
        return dataclasses.replace(
            local.jobs[question.job],
            batch=question.batch,
            seq=question.seq,
            tokens=question.tokens,
        )
    bytes_per_element(question.dtype)
    if question.optimizer not in OPTIMIZER_MOMENTS:
        raise UnknownName("optimizer", question.optimizer, OPTIMIZER_MOMENTS)
    return Train(
        batch=question.batch,
        seq=question.seq,
        tokens=question.tokens,
        compute=question.dtype,
        optimizer=question.optimizer,
        **state_dtypes(question.precision, question.dtype),  # type: ignore[arg-type]
    )


def _serving(question: Question, system: System | None) -> Serve:
    """The job with the dtypes that `plan --serve` takes; `system` is None if it has no answer."""
    bytes_per_element(question.dtype)
    chip = system.chip if system else None
    return Serve(
        prompt=question.prompt,
        output=question.output,
        batch=question.batch,
        weights=question.dtype,
        kv=usual_cache(question.dtype, chip),
        compute=usual_compute(question.dtype, chip),
        rate=question.rate,
        tpot_s=question.tpot_s,
        ttft_s=question.ttft_s,
    )
