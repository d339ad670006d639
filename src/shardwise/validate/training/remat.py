"""Conversion of the recomputation and offload of a record to parts of a layer.

Sources of the tables: Megatron-LM (`recompute_modules`), pytorch/torchtitan (per-op selective
checkpointing saves every other matmul), MaxText (`remat_policy` names the saved arrays).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.errors import BadFile
from shardwise.validate.records.fields import JsonReader
from shardwise.vocabulary import LAYER, PARTS

_NORMS = ("norms",)

# XLA does not recompute the last matmul of a layer, since the backward pass needs no output of it.
_ALL_BUT_LAST = PARTS[:-1]

# Name of a policy -> recomputed parts. `_parse_policy` handles all other policies.
_POLICIES: dict[str, tuple[str, ...]] = {
    "none": (),
    "selective-attention": ("attention",),
    "selective-per-op": ("norms", "k", "out", "up", "activation"),
    "minimal": ("norms", "attention", "activation"),
    "qkv_proj_offloaded": ("norms", "attention", "out", "gate", "up", "activation"),
    "minimal_with_context": ("norms", "activation"),
    "minimal_flash": ("norms", "activation"),
    "save_qkv_proj": ("norms", "attention", "out", "gate", "up", "activation"),
    "save_out_proj": ("norms", "q", "k", "v", "attention", "gate", "up", "activation"),
    "save_dot_except_mlp": ("norms", "attention", "gate", "up", "activation"),
    "save_dot_with_context_except_mlp": ("norms", "gate", "up", "activation"),
    "selective (norms, MLA up-projection)": ("norms", "mla_up"),
    "selective": _ALL_BUT_LAST,
}

# Megatron-LM's name of a module -> its parts, which are recomputed.
_MODULES: dict[str, tuple[str, ...]] = {
    "layernorm": _NORMS,
    "moe_act": ("activation",),
    "mlp_act": ("activation",),
    "mla_up_proj": ("mla_up",),
    "core_attn": ("attention",),
    "mlp": ("gate", "up", "activation", "down"),
    "moe": ("gate", "up", "activation", "down"),
}

# What MaxText may do with an array: keep it on the device, offload it, or recompute it.
_ARRAY_CHOICES = ("device", "offload", "remat")

# MaxText's name of an array -> the parts whose results are in it.
_ARRAYS: dict[str, tuple[str, ...]] = {
    "decoder_layer_input": ("layer_input",),
    "query_proj": ("q",),
    "key_proj": ("k",),
    "value_proj": ("v",),
    "qkv_proj": ("q", "k", "v"),
    "context": ("attention",),
    "out_proj": ("out",),
    "mlpwi_0": ("gate",),
    "mlpwi_1": ("up",),
    "mlpwi": ("gate", "up"),
    "mlpwo": ("down",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remat:
    """Recomputation and offload to host memory, as in the fields of `Layout` of the same names."""

    recomputed: tuple[str, ...] = ()
    remat_layers: int | None = None
    offload: tuple[str, ...] = ()
    offload_layers: int | None = None


def remat_of(
    record: JsonReader, n_layers: int, *, routed: bool = False
) -> tuple[Remat, dict[str, str]]:
    """Return recomputation and offload of a record, and the assumptions about them.

    Args:
        n_layers: Number of layers of the model.
        routed: Whether the model has experts.

    Raises:
        BadFile: the policy is unknown.
    """
    recompute = record.section("recompute")
    assumed: dict[str, str] = {}
    policy = recompute.text("policy", "")
    if not policy:
        policy = "none"
        assumed["remat"] = "none; the source does not say"
    elif policy == "selective":
        assumed["remat"] = "all but the last matmul of a layer; the source says selective"
    remat, unknown = _parse_policy(policy, recompute, n_layers, routed=routed)
    if unknown:
        assumed["remat"] = f"no part of a layer is known for {', '.join(unknown)}"
    offload = list(remat.offload)
    if recompute.flag("cpu_offload"):
        # ml-engineering's benchmark.py offloads the optimizer, and with it DeepSpeed's gradients;
        # `gradient_checkpointing_enable` keeps activation checkpoints on the chip.
        offload += ["gradients", "optimizer"]
    offload_layers = record.section("overlap").optional_integer("cpu_offloading_layers")
    if offload_layers:
        offload.append("activations")
    return replace(remat, offload=tuple(offload), offload_layers=offload_layers), assumed


def _parse_policy(
    policy: str, recompute: JsonReader, n_layers: int, *, routed: bool
) -> tuple[Remat, tuple[str, ...]]:
    """Return the parts that a policy recomputes and offloads, and the unknown names in it."""
    if policy == "full":
        return Remat(recomputed=(LAYER,)), ()
    if policy == "full-layers":
        return Remat(recomputed=(LAYER,), remat_layers=recompute.integer("num_layers")), ()
    if policy == "selective-layer":  # torchtitan: every second layer
        return Remat(recomputed=(LAYER,), remat_layers=max(1, n_layers // 2)), ()
    if policy == "selective-modules":
        # "mlp" is an MLP without experts. In a model with experts few layers have one (3 of 61 in
        # DeepSeek-V3), so its recomputation is neglected.
        modules = [name for name in recompute.texts("modules") if name != "mlp" or not routed]
        parts, unknown = _look_up(modules, _MODULES)
        return Remat(recomputed=parts), unknown
    if policy == "custom":
        return _parse_custom(recompute.section("tensors"))
    if policy not in _POLICIES:
        raise BadFile(f'unknown recomputation: "{policy}" is none of {", ".join(_POLICIES)}.')
    offload = ("q", "k", "v") if policy == "qkv_proj_offloaded" else ()
    return Remat(recomputed=_POLICIES[policy], offload=offload), ()


def _parse_custom(tensors: JsonReader) -> tuple[Remat, tuple[str, ...]]:
    """Convert a custom policy of MaxText, which says for each array whether it is kept.

    Parts whose results are not in a kept or offloaded array are recomputed.
    """
    places = {name: tensors.text(name) for name in tensors.data}
    invalid = [f"{name}: {place}" for name, place in places.items() if place not in _ARRAY_CHOICES]
    if invalid:
        problems = ", ".join(invalid)
        raise BadFile(f"unknown recomputation: {problems} is none of {', '.join(_ARRAY_CHOICES)}.")
    saved, unknown = _look_up([name for name in places if places[name] != "remat"], _ARRAYS)
    offload, _ = _look_up([name for name in places if places[name] == "offload"], _ARRAYS)
    recomputed = tuple(part for part in _ALL_BUT_LAST if part not in saved)
    return Remat(recomputed=recomputed, offload=offload), unknown


def _look_up(
    names: Sequence[str], table: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Look up names in a table; return their parts in the order of a layer, and unknown names."""
    named: set[str] = set()
    for name in names:
        named.update(table.get(name, ()))
    parts = tuple(part for part in ("layer_input", *PARTS) if part in named)
    return parts, tuple(name for name in names if name not in table)
