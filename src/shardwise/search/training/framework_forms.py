"""Pipeline schedules and kinds of context parallelism that each training framework runs.

As their documentation had it in 2026-11. A framework that is not named runs all: so does the
trainer of this package, except for what `runtime_limits` says.
"""

from __future__ import annotations

from shardwise.vocabulary import CONTEXT_KINDS

SCHEDULES = {
    "megatron": ("1f1b", "interleaved"),
    "nemo": ("1f1b", "interleaved"),
    "torchtitan": ("gpipe", "1f1b", "interleaved", "zb-v"),
    "maxtext": ("gpipe", "interleaved"),
    "nanotron": ("gpipe", "1f1b"),
    "deepspeed": ("gpipe", "1f1b"),
    "megatron-deepspeed": ("gpipe", "1f1b"),
    "llm-foundry": (),
    "automodel": ("gpipe", "1f1b", "interleaved"),
    "hai-llm": ("1f1b", "dualpipe"),
}
CONTEXT = {
    "megatron": CONTEXT_KINDS,
    "nemo": CONTEXT_KINDS,
    "torchtitan": ("gather", "ring"),
    "maxtext": ("gather", "ring"),
    "nanotron": (),
    "deepspeed": ("ulysses",),
    "megatron-deepspeed": (),
    "llm-foundry": (),
    "automodel": ("gather", "ring"),
    "hai-llm": (),
}


def runs(framework: str, option: str, value: str) -> bool:
    """Whether a framework runs a value of `schedule` or `context_kind`; "" runs all."""
    tables = {"schedule": SCHEDULES, "context_kind": CONTEXT}
    return value in tables[option].get(framework, (value,))
