"""MaxText's `remat_policy`: which tensors of a layer are saved, and where.

Policies name the tensors that they save or offload; of `custom` each is an option of the file
(MaxText, main of 2026-08-22: configs/base.yml, layers/decoders.py). Norms and activation functions
have no name, so that they are always recomputed; the input of a layer always is saved.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.models import ModelConfig, Moe
from shardwise.vocabulary import PARTS

WORDS = {
    "full": "full",
    "dots": "minimal_with_context",
    "mlp": "save_dot_with_context_except_mlp",
    "norms": "minimal_with_context",
    "none": "minimal_with_context",
}
_READ = {"full": "full", "minimal_with_context": "dots", "minimal_flash": "dots"} | {
    "save_dot_with_context_except_mlp": "mlp"
}
INPUT = "decoder_layer_input"
_QKV = ("query_proj", "key_proj", "value_proj")
_DOTS = (*_QKV, "out_proj")
_MLP = ("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo")
# Policy -> tensors that it saves, and those that it offloads, beside the input of the layer.
_SAVED = {
    "minimal": (*_DOTS, *_MLP),
    "save_dot_except_mlpwi": (*_DOTS, "mlpwo"),
    "save_dot_except_mlp": _DOTS,
    "save_qkv_proj": _QKV,
    "save_out_proj": ("out_proj",),
}
_OFFLOADED = {"qkv_proj_offloaded": _QKV, "minimal_offloaded": (*_DOTS, *_MLP)}
# Tensor of `custom` -> the parts of a layer that it is.
_PARTS = {
    "context": ("attention",),
    "query_proj": ("q",), "key_proj": ("k",), "value_proj": ("v",), "qkv_proj": ("q", "k", "v"),
    "out_proj": ("out",),
    "mlpwi": ("gate", "up"), "mlpwi_0": ("gate",), "mlpwi_1": ("up",), "mlpwo": ("down",),
    "moe_mlpwi_0": ("gate",), "moe_mlpwi_1": ("up",), "moe_mlpwo": ("down",),
}  # fmt: skip
# Of latent attention: the latents, from which `mla_up` makes queries, keys and values.
_LATENTS = {"query_wa_proj": ("q",), "kv_wa_proj": ("k", "v")}
# Tensors that no part of a plan is.
_OTHERS = ("kv_proj", "mla_q", "mla_kv", "attention_out", "indexer_cutoff_threshold", "engram")
TENSORS = (INPUT, *_PARTS, *_LATENTS, *_OTHERS)


def read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a launch: the remat policy, or that of a model, and what is offloaded."""
    word = str(settings.get("remat_policy", "full"))
    offload: tuple[str, ...] = (
        ("optimizer",) if settings.get("optimizer_memory_host_offload") else ()
    )
    if word in _READ:
        return {"remat": _READ[word], "offload": offload}
    if word == "custom":
        where = {name: str(settings[name]) for name in TENSORS if name in settings}
    elif word in _SAVED or word in _OFFLOADED:
        where = dict.fromkeys(_SAVED.get(word, ()), "device")
        where |= dict.fromkeys(_OFFLOADED.get(word, ()), "offload")
    else:
        return {"of_model": functools.partial(_unknown, word), "offload": offload}
    where = {name: place for name, place in where.items() if place in ("device", "offload")}
    where.setdefault(INPUT, "device")
    if "device" not in where.values():
        offload += ("activations",)
    return {"of_model": functools.partial(policy, word, where), "offload": offload}


def _unknown(word: str, _: ModelConfig) -> tuple[None, list[str]]:
    return None, [f"remat_policy {word} is not read; the fastest policy that fits is planned."]


def policy(word: str, where: Mapping[str, str], model: ModelConfig) -> tuple[str, list[str]]:
    """The parts of a model's layers that are recomputed, and what is planned otherwise.

    Args:
        where: saved tensor -> `device` or `offload`.
    """
    has_latents = any(attention.mla for attention, _ in model.attentions)
    meaning = {**_PARTS, **(_LATENTS if has_latents else {})}
    n_experts = sum(group.count for group in model.groups if isinstance(group.layer.ffn, Moe))
    if not n_experts:
        meaning = {name: parts for name, parts in meaning.items() if not name.startswith("moe_")}
    otherwise = [name for name in where if name not in meaning and name != INPUT]
    saved = {part for name in where for part in meaning.get(name, ())}
    if has_latents:
        widths = [name for name in where if name in _QKV]
        if len(widths) == len(_QKV):
            saved.add("mla_up")
        else:
            otherwise += widths  # saved are all of queries, keys and values, or none
            latents = [_LATENTS[name] for name in where if name in _LATENTS]
            saved -= {"q", "k", "v"} - {part for parts in latents for part in parts}
    notes = list(_notes(word, where, otherwise))
    recomputed = [part for part in PARTS if part not in saved]
    if not has_latents:
        saved.discard("mla_up")
    return (",".join(recomputed) if saved else "full"), notes


def _notes(word: str, where: Mapping[str, str], otherwise: list[str]) -> Iterator[str]:
    if otherwise:
        yield (
            f"remat_policy {word} saves {', '.join(otherwise)}; they are planned as recomputed, "
            "for no part of a plan's layers is one of them alone."
        )
    offloaded = [name for name, place in where.items() if place == "offload"]
    if offloaded and "device" in where.values():
        yield (
            f"remat_policy {word} offloads {', '.join(offloaded)} to the host; a plan offloads all "
            "that is saved or nothing, and has them on the device: more memory than the run needs."
        )
