"""The options of a training step -> the job, with every problem told at once."""

from __future__ import annotations

import shardwise as sw
from shardwise import units
from shardwise.cli.inputs import Inputs, parse_word
from shardwise.workload import (
    CHOSEN_OVERLAPS,
    OFFLOADED,
    OPTIMIZER_MOMENTS,
    REMAT,
    held_in,
    parse_batch,
)


def read_job(
    batch: str,
    tokens: str = "",
    dtype: str = "bf16",
    optimizer: str = "adamw",
    remat: str = "auto",
    reduce: str = "",
    overlap: str = "",
    offload: str = "",
) -> sw.Train:
    """A job from the words of its options.

    Raises:
        BadInput: with every word that is wrong.
    """
    inputs = Inputs()
    if not batch:
        inputs.refuse("no batch is given. Add --batch SEQUENCESxLENGTH, as --batch 1024x4096.")
    sequences, length = inputs.read(parse_batch, batch or "1x1") or (1, 1)
    total = inputs.read(units.parse_count, tokens, "tokens") if tokens else None
    inputs.read(units.bytes_per_element, dtype)
    inputs.read(parse_word, optimizer, "optimizer", OPTIMIZER_MOMENTS)
    inputs.read(parse_word, remat, "remat policy", REMAT)
    if reduce:
        inputs.read(units.bytes_per_element, reduce)
    words = {"overlap": (overlap, CHOSEN_OVERLAPS), "offload": (offload, OFFLOADED)}
    for what, (text, known) in words.items():
        for word in listed(text):
            inputs.read(parse_word, word, what, known)
    inputs.done()
    return sw.Train(
        batch=sequences,
        seq=length,
        tokens=total,
        weights=held_in(dtype),
        compute=dtype,
        optimizer=optimizer,
        remat=remat,
        reduce=reduce or None,
        overlap=listed(overlap),
        offload=listed(offload),
    )


def listed(text: str) -> tuple[str, ...]:
    """`a, b` -> two words; nothing -> none."""
    return tuple(word.strip() for word in text.split(",")) if text else ()
