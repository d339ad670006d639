"""Recomputation in the terms of Megatron Core: granularity, and modules of selective recomputation.

Module `mlp` is of dense layers alone and `moe` of layers with experts alone, as `moe_act` is
(Megatron Core 0.16, transformer_layer.py and moe_layer.py). A plan recomputes the same parts of all
layers: those of the kind of which the model has more.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwise.frameworks.exported import TrainingRun
from shardwise.models import ModelConfig, Moe
from shardwise.vocabulary import PARTS, REMAT_POLICIES

# Fields that recipes set for their own layouts, and that a file over a recipe has to state.
FIELDS = (
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
)  # fmt: skip
FFN = ("gate", "up", "activation")
_DEFAULT = ("core_attn",)  # of selective recomputation without modules
# Module -> parts, of layers with and without experts.
_OF_ALL = {"layernorm": ("norms",), "mla_up_proj": ("mla_up",)}
_DENSE = {**_OF_ALL, "mlp": FFN}
_EXPERTS = {**_OF_ALL, "moe": FFN, "moe_act": ("activation",)}


def write(run: TrainingRun) -> tuple[dict[str, Any], list[str]]:
    """The values of the fields for the remat of a plan, and notes."""
    layout = run.layout
    if layout.policy == "none":
        return {}, []
    if layout.full_remat:
        return {
            "recompute_granularity": "full",
            "recompute_method": "block" if layout.remat_layers else "uniform",
            "recompute_num_layers": layout.remat_layers or 1,
        }, []
    n_dense, n_experts = _layers(run.model)
    modules = ["layernorm"] if layout.recomputes("norms") else []
    if run.latent and layout.recomputes("mla_up"):
        modules.append("mla_up_proj")
    notes = []
    if all(map(layout.recomputes, FFN)):
        modules += ["mlp"] * (n_dense > 0) + ["moe"] * (n_experts > 0)
    elif layout.recomputes("activation"):
        if n_experts:
            modules.append("moe_act")
        elif modules == ["layernorm"]:
            modules.append("mlp")
            notes.append(
                "remat dots: Megatron Core recomputes no activation function of a dense MLP alone; "
                "module mlp recomputes all of the MLP, which takes less memory and more time."
            )
    unsaid = [part for part in layout.recomputed if part not in ("norms", "mla_up", *FFN)]
    if unsaid:
        notes.append(f"remat of {', '.join(unsaid)}: Megatron Core has no module for it.")
    if not modules:
        return {}, notes
    return {"recompute_granularity": "selective", "recompute_modules": modules}, notes


def read(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a launch: the remat policy, or the policy of a model."""
    granularity = values.get("recompute_granularity")
    if granularity == "full":
        return {"remat": "full"}
    if granularity != "selective":
        # Sequences that are sharded over `tensor` are gathered again in the backward pass.
        tensor = values.get("tensor_model_parallel_size", 1)
        is_gathered = values.get("sequence_parallel") is True and tensor != 1
        return {"remat": "norms" if is_gathered else "none"}
    modules = values.get("recompute_modules") or _DEFAULT
    names = (modules,) if isinstance(modules, str) else tuple(map(str, modules))
    return {"of_model": functools.partial(policy, names)}


def notes(values: Mapping[str, Any]) -> Iterator[str]:
    """What the plan of any model has otherwise."""
    n_layers = values.get("recompute_num_layers")
    is_full = values.get("recompute_granularity") == "full"
    if is_full and values.get("recompute_method") == "block" and n_layers:
        yield (
            f"recompute method block: the run recomputes {n_layers} layers of each stage, and the "
            "plan all of them, which takes less memory and more time."
        )


def policy(modules: Sequence[str], model: ModelConfig) -> tuple[str, list[str]]:
    """The remat policy, or parts, that modules recompute of a model, and what is not planned."""
    n_dense, n_experts = _layers(model)
    has_latents = any(attention.mla for attention, _ in model.attentions)
    kinds = {
        "dense layers": (n_dense, _parts(modules, _DENSE, has_latents=has_latents)),
        "layers with experts": (n_experts, _parts(modules, _EXPERTS, has_latents=has_latents)),
    }
    _, planned = max(kinds.values(), key=lambda kind: kind[0])
    notes = list(_unplanned(modules, model, has_latents=has_latents))
    for kind, (count, parts) in kinds.items():
        if count and set(parts) != set(planned):
            notes.append(
                f"recompute modules {' '.join(modules)}: the {count} {kind} of {model.name} "
                f"recompute {_words(parts)}; as the other {n_dense + n_experts - count} layers "
                f"do, {_words(planned)} is planned for all."
            )
    return _name(planned, has_latents=has_latents), notes


def _layers(model: ModelConfig) -> tuple[int, int]:
    """The number of layers without and with experts."""
    counts = {True: 0, False: 0}
    for group in model.groups:
        counts[isinstance(group.layer.ffn, Moe)] += group.count
    return counts[False], counts[True]


def _parts(
    modules: Sequence[str], meaning: Mapping[str, tuple[str, ...]], *, has_latents: bool
) -> tuple[str, ...]:
    """The parts of a layer that modules recompute, in the order of `PARTS`."""
    chosen = {part for module in modules for part in meaning.get(module, ())}
    return tuple(part for part in PARTS if part in chosen and (part != "mla_up" or has_latents))


def _unplanned(modules: Sequence[str], model: ModelConfig, *, has_latents: bool) -> Iterator[str]:
    """Modules that recompute nothing of a model, or nothing that plans have a word for."""
    n_dense, n_experts = _layers(model)
    for module in modules:
        if module == "mlp" and not n_dense:
            yield (
                f"recompute module mlp is of dense layers alone: nothing of the {n_experts} layers "
                f"with experts of {model.name} is recomputed by it. Their module is moe."
            )
        elif module in ("moe", "moe_act") and not n_experts:
            yield f"recompute module {module} is of layers with experts, which {model.name} lacks."
        elif module == "mla_up_proj" and not has_latents:
            yield f"recompute module {module} is of latent attention, which {model.name} lacks."
        elif module == "core_attn":
            yield (
                "recompute module core_attn is not planned: attention is planned as one kernel, "
                "which saves no scores and runs once forward."
            )
        elif module == "shared_experts" and "moe" in modules:
            pass  # a part of module moe
        elif module not in {**_DENSE, **_EXPERTS}:
            yield f"recompute module {module} is not planned; plans have no word for it."


def _words(parts: tuple[str, ...]) -> str:
    return ", ".join(parts) or "nothing"


def _name(parts: tuple[str, ...], *, has_latents: bool) -> str:
    """The policy that recomputes these parts, or the parts separated by commas."""
    for name, of_policy in REMAT_POLICIES.items():
        if parts == tuple(part for part in of_policy if part != "mla_up" or has_latents):
            return name
    return ",".join(parts)
