"""Parse the options of a training step to a job."""

from __future__ import annotations

import shardwise as sw
from shardwise import units
from shardwise.cli.inputs import Inputs, parse_word, plain_dtypes
from shardwise.search.training import framework_limits
from shardwise.vocabulary import (
    FRAMEWORK_ALIASES,
    FRAMEWORKS,
    KERNELS,
    NO_KERNELS,
    OPTIONAL_OFFLOADS,
    OPTIONAL_OVERLAPS,
    REMAT_WORDS,
)
from shardwise.workload import OPTIMIZER_MOMENTS, PRECISIONS, state_dtypes


def check_workload(inputs: Inputs, train: bool, serve: bool) -> None:
    """Refuse a command without --train, or with both --train and --serve."""
    if serve:
        inputs.refuse("--train and --serve are different work. Ask for one of them.")
    elif not train:
        inputs.refuse("what to plan is not said. Add --train or --serve.")


def read_job(
    batch: str,
    tokens: str = "",
    dtype: str = "bf16",
    optimizer: str = "adamw",
    remat: str = "auto",
    reduce: str = "",
    overlap: str = "",
    offload: str = "",
    precision: str = "",
    framework: str = "",
    kernels: str = "",
    mtp: str = "",
) -> sw.Train:
    """Parse the texts of the options of a training step; an empty text is an option not given.

    Raises:
        BadInput: with every word that is wrong.
    """
    inputs = Inputs()
    dtype = plain_dtypes(dtype)
    if not batch:
        inputs.refuse("no batch is given. Add --batch SEQUENCESxLENGTH, as --batch 1024x4096.")
    sequences, length = inputs.read(units.parse_batch, batch or "1x1") or (1, 1)
    total_tokens = inputs.optional(units.parse_count, tokens, "tokens")
    inputs.read(units.bytes_per_element, dtype)
    inputs.optional(parse_word, precision, "precision", PRECISIONS)
    inputs.read(parse_word, optimizer, "optimizer", OPTIMIZER_MOMENTS)
    inputs.read(parse_word, remat, "remat policy", REMAT_WORDS)
    inputs.optional(units.bytes_per_element, reduce)
    overlaps = inputs.read(parse_choices, overlap, "overlap", OPTIONAL_OVERLAPS)
    offloads = inputs.read(parse_choices, offload, "offload", OPTIONAL_OFFLOADS)
    name = framework.lower()
    inputs.optional(parse_word, name, "framework", (*FRAMEWORKS, *FRAMEWORK_ALIASES))
    framework = FRAMEWORK_ALIASES.get(name, name)
    settings = inputs.read(parse_choices, kernels, "setting of kernels", (*KERNELS, NO_KERNELS))
    mtp_layers = inputs.optional(units.parse_whole, mtp, "mtp", 0) or 0
    inputs.done()
    dtypes = framework_limits.state_of(framework, dtype)
    if precision:
        dtypes = state_dtypes(precision, dtype)
    return sw.Train(
        batch=sequences,
        seq=length,
        tokens=total_tokens,
        **dtypes,  # type: ignore[arg-type]
        compute=dtype,
        optimizer=optimizer,
        remat=remat,
        reduce=reduce or None,
        overlap=overlaps,
        offload=offloads,
        framework=framework,
        kernels=settings,
        mtp_layers=mtp_layers,
    )


def parse_choices(text: str, what: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Parse a list of `known` words, which may be empty; `what` names a word in errors.

    Raises:
        BadInput: with every unknown word.
    """
    if not text:
        return ()
    words = tuple(word.strip() for word in text.split(","))
    inputs = Inputs()
    for word in words:
        inputs.read(parse_word, word, what, known)
    inputs.done()
    return words
