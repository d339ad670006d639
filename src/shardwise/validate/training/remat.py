"""What records call recomputation and offload -> the parts of a layer that run again.

Sources: Megatron-LM (`recompute_modules`), pytorch/torchtitan (per-op selective checkpointing
keeps every other matmul), MaxText (`remat_policy` names the arrays that are kept).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.errors import BadFile
from shardwise.validate.records.fields import Fields
from shardwise.vocabulary import LAYER, PARTS

_NORMS = ("norms",)

# XLA never computes again what nothing reads: the last matmul of a layer.
_ALL_BUT_LAST = PARTS[:-1]

# Policies -> the parts that run again. Custom policies and lists of modules are read below.
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

_MODULES: dict[str, tuple[str, ...]] = {
    "layernorm": _NORMS,
    "moe_act": ("activation",),
    "mlp_act": ("activation",),
    "mla_up_proj": ("mla_up",),
    "core_attn": ("attention",),
    "mlp": ("gate", "up", "activation", "down"),
    "moe": ("gate", "up", "activation", "down"),
}

_PLACES = ("device", "offload", "remat")

# MaxText's names of arrays -> the part that produces them; what is not named runs again.
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
    """The fields of a Layout that say what is recomputed and what waits in host memory."""

    recomputed: tuple[str, ...] = ()
    remat_layers: int | None = None
    offload: tuple[str, ...] = ()
    offload_layers: int | None = None


def remat_of(
    record: Fields, n_layers: int, *, routed: bool = False
) -> tuple[Remat, dict[str, str]]:
    """Recomputation and offload of a record, and what was assumed.

    Args:
        record: The record.
        n_layers: Layers of the model.
        routed: It has experts.

    Raises:
        BadFile: a policy whose parts are not known.
    """
    recompute, overlap = record.inner("recompute"), record.inner("overlap")
    assumed: dict[str, str] = {}
    policy = recompute.text("policy", "")
    if not policy:
        policy = "none"
        assumed["remat"] = "none; the source does not say"
    elif policy == "selective":
        assumed["remat"] = "all but the last matmul of a layer; the source says selective"
    offload: tuple[str, ...] = ("layer_input",) if recompute.flag("cpu_offload") else ()
    layers = overlap.maybe_whole("cpu_offloading_layers")
    if layers:
        offload = (*offload, "activations")
    found, unread = _read(policy, recompute, n_layers, routed=routed)
    if unread:
        assumed["remat"] = f"no part of a layer is known for {', '.join(unread)}"
    return Remat(
        recomputed=found.recomputed,
        remat_layers=found.remat_layers,
        offload=(*found.offload, *offload),
        offload_layers=layers,
    ), assumed


def _read(
    policy: str, recompute: Fields, n_layers: int, *, routed: bool
) -> tuple[Remat, tuple[str, ...]]:
    """What a policy recomputes, and the names in it that are not known."""
    if policy == "full":
        return Remat(recomputed=(LAYER,)), ()
    if policy == "full-layers":
        return Remat(recomputed=(LAYER,), remat_layers=recompute.whole("num_layers")), ()
    if policy == "selective-layer":  # torchtitan: every second layer
        return Remat(recomputed=(LAYER,), remat_layers=max(1, n_layers // 2)), ()
    if policy == "selective-modules":
        # "mlp" is the dense block, "moe" the routed one; of a model with experts few layers have
        # a dense one (DeepSeek-V3: 3 of 61), and its recomputation is left out.
        names = [m for m in recompute.texts("modules") if not (routed and m == "mlp")]
        parts, unread = _parts(names, _MODULES)
        return Remat(recomputed=parts), unread
    if policy == "custom":
        return _custom(recompute.inner("tensors"))
    if policy not in _POLICIES:
        raise BadFile(f'unknown recomputation: "{policy}" is none of {", ".join(_POLICIES)}.')
    offload = ("q", "k", "v") if policy == "qkv_proj_offloaded" else ()
    return Remat(recomputed=_POLICIES[policy], offload=offload), ()


def _custom(tensors: Fields) -> tuple[Remat, tuple[str, ...]]:
    """MaxText: arrays are kept on the device or offloaded; those not named run again."""
    places = {name: tensors.text(name) for name in tensors.data}
    bad = [f"{name}: {place}" for name, place in places.items() if place not in _PLACES]
    if bad:
        raise BadFile(f"unknown recomputation: {', '.join(bad)} is none of {', '.join(_PLACES)}.")
    kept, unread = _parts([n for n, place in places.items() if place != "remat"], _ARRAYS)
    gone, _ = _parts([n for n, place in places.items() if place == "offload"], _ARRAYS)
    again = tuple(part for part in _ALL_BUT_LAST if part not in kept)
    return Remat(recomputed=again, offload=gone), unread


def _parts(
    names: Sequence[str], table: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of a layer behind these names, in order, and the names without one."""
    found = {part for name in names for part in table.get(name, ())}
    ordered = tuple(part for part in ("layer_input", *PARTS) if part in found)
    return ordered, tuple(name for name in names if name not in table)
