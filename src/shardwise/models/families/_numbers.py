"""Numbers that several families read alike: norms, activations, rotary positions."""

from __future__ import annotations

import dataclasses
import math

from shardwise.models.keys import Keys
from shardwise.models.numerics import ACTIVATIONS, Norm, Rope, RopeScaling


def rms_norm(keys: Keys, default: float = 1e-6, *, plus_one: bool = False) -> Norm:
    """`rms_norm_eps`."""
    return Norm(eps=keys.number("rms_norm_eps", default=default), plus_one=plus_one)


def activation(keys: Keys, name: str = "hidden_act", default: str = "silu") -> str:
    """The activation under our name; as the file has it where it is none that is known."""
    told = keys.text(name, default)
    return ACTIVATIONS.get(told, told)


def rope(
    keys: Keys,
    *,
    max_seq: int,
    theta: float = 10_000.0,
    interleaved: bool = False,
    kinds: dict[str, str] | None = None,
) -> Rope:
    """Rotary positions over whole heads, from `rope_theta` and `rope_scaling`.

    Args:
        keys: Of the text model; `rope_parameters` of newer files holds both.
        max_seq: Positions that the file states.
        theta: Default of the family.
        interleaved: As in `Rope`.
        kinds: Kinds of scaling that the family takes for another one.
    """
    told = scaling_keys(keys)
    inside = told if told is not keys else Keys({})
    base = inside.number("rope_theta", default=keys.number("rope_theta", default=theta))
    return Rope(
        theta=base,
        interleaved=interleaved,
        scaling=scaling(keys, inside, max_seq, kinds or {}),
    )


def partial(keys: Keys, rotary: Rope, H: int, default: float, *names: str) -> Rope:
    """Rotary positions on the part of a head that `partial_rotary_factor` (or `names`) says."""
    told, names = scaling_keys(keys), ("partial_rotary_factor", *names)
    share = keys.number(*names, default=default)
    if told is not keys:
        share = told.number("partial_rotary_factor", default=share)
    return rotary if share == 1 else dataclasses.replace(rotary, dims=int(H * share))


def scaling_keys(keys: Keys) -> Keys:
    """The object that says how frequencies are scaled; `keys` itself where there is none."""
    older = keys.inner("rope_scaling")
    return older if older is not keys else keys.inner("rope_parameters")


def scaling(
    keys: Keys, told: Keys, max_seq: int, kinds: dict[str, str] | None = None
) -> RopeScaling | None:
    """The scaling that an object of a config.json describes, None for none."""
    kind = told.text("rope_type", told.text("type", "default"))
    kind = (kinds or {}).get(kind, kind)
    if kind == "default":
        return None
    stated = keys.whole("original_max_position_embeddings", default=max_seq)
    original = told.whole("original_max_position_embeddings", default=stated)
    original = max_seq if kind == "dynamic" else original
    factor = told.number("factor", default=max_seq / original)
    return RopeScaling(
        kind=kind,
        factor=factor,
        original=original,
        low_freq=told.number("low_freq_factor", default=1.0),
        high_freq=told.number("high_freq_factor", default=4.0),
        beta_fast=told.number("beta_fast", default=32.0),
        beta_slow=told.number("beta_slow", default=1.0),
        truncate=told.flag("truncate", True),
        attention_factor=_attention_factor(told, kind, factor, original),
        short=told.numbers("short_factor"),
        long=told.numbers("long_factor"),
    )


def yarn_gain(factor: float, mscale: float = 1.0) -> float:
    """How much attention is sharpened for sequences `factor` times longer.

    Source: YaRN, arXiv 2309.00071, section 3.4.
    """
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _attention_factor(told: Keys, kind: str, factor: float, original: int) -> float:
    stated = told.maybe_number("attention_factor")
    mscale, of_all = told.number("mscale", default=0.0), told.number("mscale_all_dim", default=0.0)
    if kind not in ("yarn", "longrope"):
        return 1.0
    if stated is not None:
        return stated
    if kind == "longrope":  # arXiv 2402.13753, as Phi-3 takes it
        longer = factor > 1 and original > 1
        return math.sqrt(1 + math.log(factor) / math.log(original)) if longer else 1.0
    if mscale and of_all:
        return yarn_gain(factor, mscale) / yarn_gain(factor, of_all)
    return yarn_gain(factor)
