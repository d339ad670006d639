"""What serving engines run: layouts of weights, KV caches and experts, and combinations of axes.

As their documentation and sources had it in 2026-11. A search for an engine leaves out layouts
beyond its limits, unless the user fixed them; `frameworks` exports none of them. An engine that is
not named here runs all, except for what `runtime_limits` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from shardwise.arrays import Num
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.search.serving.runtime_limits import min_kv_heads

SPLITS_SEQUENCES = ("vllm", "sglang")  # tokens of a KV cache over tensor ranks, or of a prompt


class EngineForm(Protocol):
    """How an engine shards weights, KV caches and experts."""

    @property
    def weights(self) -> str:
        """One of `WEIGHT_LAYOUTS`."""

    @property
    def kv(self) -> str:
        """One of `KV_SPLITS`."""

    @property
    def expert_tensor(self) -> int | None:
        """Tensor shards of one expert; None for the size of `tensor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimit:
    """Something of a layout that an engine does not run.

    Args:
        choices: what the user fixes to plan it all the same: mesh roles and options.
        asked: the part of the layout: a format of its sizes and words.
        has: what the engine has in its place.
        nearest: the option of `shardwise plan` with which the engine can run the layout.
    """

    choices: tuple[str, ...]
    asked: str
    has: str
    nearest: str


Rule = tuple[EngineLimit, Num]  # a limit, and whether a layout, or each of many, is within it


def limit_of(
    engine: str, config: ModelConfig, chip: Chip, form: EngineForm, sizes: Mapping[str, int]
) -> EngineLimit | None:
    """The first limit of an engine that a layout is beyond, with its numbers; None within all."""
    for limit, supported in _rules(engine, config, chip, form, sizes):
        if not supported:
            numbers = {
                **sizes,
                "weights": form.weights,
                "kv": form.kv,
                "shards": form.expert_tensor or _tensor_devices(chip, sizes),
                "ranks": ranks_of_a_head(config, sizes["tensor"]),
            }
            return EngineLimit(
                choices=limit.choices,
                asked=limit.asked.format(**numbers),
                has=limit.has.format(**numbers, both=sizes["tensor"] * sizes["context"]),
                nearest=limit.nearest,
            )
    return None


def is_run(
    engine: str,
    config: ModelConfig,
    chip: Chip,
    form: EngineForm,
    sizes: Mapping[str, Num],
    fixed: Set[str],
) -> Num:
    """Whether an engine runs a form on each mesh, but for what the user fixed.

    Args:
        sizes: mesh role -> chips of each engine.
        fixed: mesh roles and options that the user fixed.
    """
    runs: Num = sizes["tensor"] > 0
    for limit, supported in _rules(engine, config, chip, form, sizes):
        if not set(limit.choices) <= fixed:
            runs = runs & supported
    return runs


def ranks_of_a_head(config: ModelConfig, tensor: Num) -> Num:
    """Tensor ranks that have the same KV head: all of them with latent attention (MLA)."""
    import numpy as np

    return tensor // np.gcd(min_kv_heads(config), np.asarray(tensor, dtype=int))


def _rules(
    engine: str, config: ModelConfig, chip: Chip, form: EngineForm, sizes: Mapping[str, Num]
) -> Iterator[Rule]:
    """Every limit of an engine."""
    if engine not in (*SPLITS_SEQUENCES, "trtllm"):
        return
    yield (
        EngineLimit(
            choices=("weights",),
            asked='weights "{weights}"',
            has="its weights are sharded over tensor only",
            nearest="--fix weights=stationary,fsdp=1",
        ),
        form.weights == "stationary",
    )
    yield (
        EngineLimit(
            choices=("kv",),
            asked='a KV cache split by "{kv}"',
            has="it copies KV heads that tensor ranks share",
            nearest="--fix kv=copied",
        ),
        form.kv == "copied" or (form.kv == "sequence" and engine in SPLITS_SEQUENCES),
    )
    if engine == "trtllm":
        yield from _trtllm(sizes)
    elif engine == "vllm":
        yield from _vllm(config, chip, form, sizes)
    elif form.kv == "sequence":
        yield (
            EngineLimit(
                choices=("context", "kv"),
                asked="context {context} with a KV cache split over {ranks} ranks",
                has="it shards the tokens of a prompt or those of the cache",
                nearest="--fix kv=copied, or --fix context=1",
            ),
            (sizes["context"] == 1) | (ranks_of_a_head(config, sizes["tensor"]) == 1),
        )


def _trtllm(sizes: Mapping[str, Num]) -> Iterator[Rule]:
    """With `enable_attention_dp` every rank of `tensor_parallel_size` has its own sequences.

    Without it, all ranks share them, and `moe_expert_parallel_size` x `moe_tensor_parallel_size`
    ranks share the experts.
    """
    yield (
        EngineLimit(
            choices=("context",),
            asked="context {context}",
            has="it does not shard the tokens of a prompt",
            nearest="--fix context=1",
        ),
        sizes["context"] == 1,
    )
    yield (
        EngineLimit(
            choices=("expert", "tensor"),
            asked="expert {expert} with tensor {tensor}",
            has="under attention data parallelism its attention is not sharded",
            nearest="--fix tensor=1, or --fix expert=1,expert_tensor=1",
        ),
        (sizes["expert"] == 1) | (sizes["tensor"] == 1),
    )


def _vllm(
    config: ModelConfig, chip: Chip, form: EngineForm, sizes: Mapping[str, Num]
) -> Iterator[Rule]:
    context, tensor = sizes["context"], sizes["tensor"]
    if not any(attention.mla for attention, _ in config.attentions):
        yield (
            EngineLimit(
                choices=("context",),
                asked="context {context}",
                has="it shards the tokens of a prompt of models with latent attention (MLA) only",
                nearest="--fix context=1",
            ),
            context == 1,
        )
    if form.kv == "sequence":
        ranks = ranks_of_a_head(config, tensor)
        yield (
            EngineLimit(
                choices=("context", "kv"),
                asked="context {context} with a KV cache split over {ranks} ranks",
                has="beside context, a cache is split over {context} or {both} ranks",
                nearest="--fix kv=copied",
            ),
            (context == 1) | (ranks == 1) | (ranks == context) | (ranks == tensor * context),
        )
    if config.is_moe:
        shards = form.expert_tensor or _tensor_devices(chip, sizes)
        yield (
            EngineLimit(
                choices=("expert", "expert_tensor"),
                asked="expert {expert} with experts sharded over tensor {shards}",
                has="under expert parallelism a rank has whole experts",
                nearest="--fix expert_tensor=1",
            ),
            (sizes["expert"] == 1) | (shards == 1),
        )


def _tensor_devices(chip: Chip, sizes: Mapping[str, Num]) -> Num:
    """Devices of JAX along `tensor`: those of a chip share heads, or sequences of `expert`."""
    share_sequences = (sizes["tensor"] == 1) & (sizes["expert"] > 1)
    n_devices = chip.n_devices or 1
    return sizes["tensor"] * (n_devices - (n_devices - 1) * share_sequences)
