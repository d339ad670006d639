"""Norms, activations, rotary positions and expert counts, in the keys that families share."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from shardwise.models.keys import Keys
from shardwise.models.numerics import ACTIVATIONS, Norm, Rope, RopeScaling

# Number of routed experts: families have different names for it, and transformers writes some of
# them under the name of another (Qwen3-MoE, from version 5 on).
EXPERT_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


def expert_count(keys: Keys, name: str, **default: Any) -> int:
    """Read the number of routed experts, from key `name` or any other of `EXPERT_COUNT_KEYS`."""
    others = [key for key in EXPERT_COUNT_KEYS if key != name]
    return keys.equal_integer(name, *others, **default)


def rms_norm(keys: Keys, default: float = 1e-6, *, plus_one: bool = False) -> Norm:
    """An RMS norm with the epsilon in `rms_norm_eps`."""
    return Norm(eps=keys.number("rms_norm_eps", default=default), plus_one=plus_one)


def layer_norm(keys: Keys, name: str = "layer_norm_eps", *, plus_one: bool = False) -> Norm:
    """Read a norm that subtracts the mean, with the epsilon in key `name`."""
    return Norm(kind="layer", eps=keys.number(name, default=1e-5), plus_one=plus_one)


def activation(keys: Keys, name: str = "hidden_act", default: str = "silu") -> str:
    """Read the activation from key `name`, by its name in `numerics.ACTIVATIONS`.

    Unknown names are returned unchanged.
    """
    config_name = keys.text(name, default)
    return ACTIVATIONS.get(config_name, config_name)


def rope(
    keys: Keys,
    *,
    max_seq: int,
    theta: float = 10_000.0,
    interleaved: bool = False,
    kind_aliases: dict[str, str] | None = None,
) -> Rope:
    """Read rotary positions over whole heads, from `rope_theta` and `rope_scaling`.

    Newer files have both in `rope_parameters`.

    Args:
        keys: Keys of the text model.
        max_seq: Longest sequence that the file states.
        theta: Base of the frequencies if the file does not state it.
        interleaved: As in `Rope`.
        kind_aliases: Kinds of scaling in earlier files -> their current names.
    """
    scaling_keys = rope_scaling_keys(keys)
    theta = keys.number("rope_theta", default=theta)
    if scaling_keys is not None:
        theta = scaling_keys.number("rope_theta", default=theta)
    scaling = rope_scaling(keys, scaling_keys or Keys({}), max_seq, kind_aliases)
    return Rope(theta=theta, interleaved=interleaved, scaling=scaling)


def local_and_global_rope(
    keys: Keys, *, max_seq: int, local_theta: float, global_theta: float
) -> tuple[Rope, Rope]:
    """Read rotary positions of local and of global layers; a scaling applies to global layers.

    Newer files have both in `rope_parameters`, by type of layer.

    Args:
        keys: Keys of the text model.
        max_seq: Longest sequence that the file states.
        local_theta, global_theta: Bases of the frequencies if the file does not state them.
    """
    parameters = keys.optional_inner("rope_parameters")
    global_keys = parameters.optional_inner("full_attention") if parameters else None
    if parameters is None or global_keys is None:
        return Rope(theta=local_theta), rope(keys, max_seq=max_seq, theta=global_theta)
    local_keys = parameters.inner("sliding_attention")
    local_rotary = Rope(
        theta=local_keys.number("rope_theta", default=local_theta),
        scaling=rope_scaling(keys, local_keys, max_seq),
    )
    global_rotary = Rope(
        theta=global_keys.number("rope_theta", default=global_theta),
        scaling=rope_scaling(keys, global_keys, max_seq),
    )
    return local_rotary, global_rotary


def partial_rope(keys: Keys, rotary: Rope, H: int, default: float, *key_names: str) -> Rope:
    """Restrict rotary positions to the share of each head that `partial_rotary_factor` states.

    Args:
        keys: Keys of the text model.
        rotary: Rotary positions over whole heads.
        H: Width of a head.
        default: Share if the file does not state it.
        key_names: Other keys that may state the share.
    """
    share = keys.number("partial_rotary_factor", *key_names, default=default)
    scaling_keys = rope_scaling_keys(keys)
    if scaling_keys is not None:
        share = scaling_keys.number("partial_rotary_factor", default=share)
    if share == 1:
        return rotary
    return dataclasses.replace(rotary, dims=int(H * share))


def rope_scaling_keys(keys: Keys) -> Keys | None:
    """The keys that describe how rotary frequencies are scaled; None if the file has none."""
    return keys.optional_inner("rope_scaling") or keys.optional_inner("rope_parameters")


def rope_scaling(
    keys: Keys, scaling_keys: Keys, max_seq: int, kind_aliases: dict[str, str] | None = None
) -> RopeScaling | None:
    """Read the scaling of rotary frequencies; None for the kind "default".

    Args:
        keys: Keys of the text model.
        scaling_keys: Keys that describe the scaling.
        max_seq: Longest sequence that the file states.
        kind_aliases: As in `rope`.
    """
    kind = scaling_keys.text("rope_type", scaling_keys.text("type", "default"))
    if kind_aliases:
        kind = kind_aliases.get(kind, kind)
    if kind == "default":
        return None
    original_max_seq = keys.integer("original_max_position_embeddings", default=max_seq)
    original_max_seq = scaling_keys.integer(
        "original_max_position_embeddings", default=original_max_seq
    )
    if kind == "dynamic":
        original_max_seq = max_seq
    factor = scaling_keys.number("factor", default=max_seq / original_max_seq)
    return RopeScaling(
        kind=kind,
        factor=factor,
        original=original_max_seq,
        low_freq=scaling_keys.number("low_freq_factor", default=1.0),
        high_freq=scaling_keys.number("high_freq_factor", default=4.0),
        beta_fast=scaling_keys.number("beta_fast", default=32.0),
        beta_slow=scaling_keys.number("beta_slow", default=1.0),
        truncate=scaling_keys.flag("truncate", True),
        attention_factor=_attention_factor(scaling_keys, kind, factor, original_max_seq),
        short=scaling_keys.numbers("short_factor"),
        long=scaling_keys.numbers("long_factor"),
    )


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Attention factor of YaRN for sequences `factor` times longer.

    Source: YaRN, arXiv 2309.00071, section 3.4.
    """
    if factor <= 1:
        return 1.0
    return 0.1 * mscale * math.log(factor) + 1.0


def _attention_factor(scaling_keys: Keys, kind: str, factor: float, original_max_seq: int) -> float:
    stated_factor = scaling_keys.optional_number("attention_factor")
    mscale = scaling_keys.number("mscale", default=0.0)
    mscale_all_dim = scaling_keys.number("mscale_all_dim", default=0.0)
    if kind not in ("yarn", "longrope"):
        return 1.0
    if stated_factor is not None:
        return stated_factor
    if kind == "longrope":  # arXiv 2402.13753, in the form of Phi-3
        if factor <= 1 or original_max_seq <= 1:
            return 1.0
        return math.sqrt(1 + math.log(factor) / math.log(original_max_seq))
    if mscale and mscale_all_dim:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
    return yarn_mscale(factor)
