"""Limits of the runtime in words: what is not supported yet, and what to do about it."""

from __future__ import annotations

from shardwise.models.numerics import ACTIVATIONS, ROPE_SCALINGS
from shardwise.search.training.runtime_limits import RuntimeLimit

NOT_YET = "the planner supports it, the runtime does not yet."
NO_TRAINING = "the planner supports it, training does not yet."
GATHER = "Run shardwise plan with --fix context_kind=gather."


def limit_text(limit: RuntimeLimit) -> str:
    """The name of a limit and what to do about it: `schedule dualpipe: ... Run shardwise plan`."""
    return f"{limit_name(limit)}: {_advice(limit)}"


def limit_name(limit: RuntimeLimit) -> str:
    """What is beyond a limit: `schedule dualpipe`."""
    part = limit.part
    value = _shown(limit.value)
    names = {
        "activation": f'activation "{value}"',
        "adafactor": f"adafactor with padded {part}",
        "block": f"a model with {part}",
        "devices": f"a chip of {value} devices",
        "dtype": f"{part} in {value}",
        "expert_tensor": f"expert_tensor {value}",
        "int8_rounds": "reduce int8 under zero 2",
        "kv_heads": f"layers with {part} key/value heads",
        "loss_chunks": f"loss_chunks {value}",
        "mtp": "multi-token prediction",
        "offload": f"offload {part}",
        "offload_layers": f"offload of {value} layers only",
        "offload_pipeline": "offload of activations with a pipeline",
        "positions": f"{value} tokens a sequence",
        "reduce": f"reduce {value}",
        "remat_layers": f"remat in {value} layers only",
        "ring_chunks": f"context_kind ring in {limit.limit} chunks",
        "ring_window": f"context_kind ring with a window of {value} tokens",
        "rope_scaling": f'rope scaling "{value}"',
        "schedule": f"schedule {value}",
        "scores": f"context_kind {value} with {part}",
        "stages": f"a pipeline of a model with {value} groups of different layers",
    }
    return names[limit.kind]


def _advice(limit: RuntimeLimit) -> str:
    """Why the runtime does not support what is beyond a limit, and what it supports."""
    value = _shown(limit.value)
    advice = {
        "activation": f"{NOT_YET} It supports {', '.join(dict.fromkeys(ACTIVATIONS.values()))}.",
        "adafactor": (
            f"the chips do not divide {value}, and its means over whole arrays would include the "
            "padding. Plan with --optimizer adamw, or with chips that divide vocabulary and layers."
        ),
        "block": NOT_YET,
        "devices": (
            "they divide neither its sequences nor its heads. "
            f"Give each chip {value} sequences, or take a smaller tensor."
        ),
        "dtype": f"{NO_TRAINING} Use bf16.",
        "expert_tensor": f"{NOT_YET} It supports 1 (whole experts), or the size of tensor.",
        "int8_rounds": (
            f"it would round gradients {value} times per step, once per microbatch: shardwise plan "
            "--fix zero=1 rounds them once."
        ),
        "kv_heads": f"{NOT_YET} It supports tensor up to {limit.limit}.",
        "loss_chunks": "it does not divide the tokens of a device. Use fewer.",
        "mtp": f"{NOT_YET} Plan without --mtp.",
        "offload": NOT_YET,
        "offload_layers": f"{NOT_YET} It offloads all layers.",
        "offload_pipeline": (
            f"{NOT_YET} Its stages hold them on the chip. Run shardwise plan with --max pipe=1, or "
            "with --offload optimizer."
        ),
        "positions": (
            f"the model has {limit.limit:,} learned positions. Plan with --batch Nx{limit.limit}, "
            f"or the model with n_positions={limit.value}."
        ),
        "reduce": f"{NOT_YET} It supports int8 and 16 bits.",
        "remat_layers": NOT_YET,
        "ring_chunks": f"they do not divide {value} tokens. {GATHER}",
        "ring_window": f"it sends the keys of whole sequences. {GATHER}",
        "rope_scaling": f"{NOT_YET} It supports {', '.join(ROPE_SCALINGS)}.",
        "schedule": f"{NOT_YET} Run shardwise plan with --fix schedule=zb-v.",
        "scores": f"{NOT_YET} {GATHER}",
        "stages": (
            "stages cannot share them in equal chunks. Run shardwise plan with --max pipe=1."
        ),
    }
    return advice[limit.kind]


def _shown(value: str | int) -> str:
    return f"{value:,}" if isinstance(value, int) else value
