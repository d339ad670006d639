"""The main numbers of every preset, for a list of models."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.models.count import kv_bytes_per_token, parameters
from shardwise.models.hf import load
from shardwise.models.presets import presets
from shardwise.units import show_bytes, show_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The main numbers of one preset.

    Args:
        name: Name of the preset.
        family: Model family, as in `ModelConfig.family`.
        source: Public origin of its config.
        as_of: Month of that version, "YYYY-MM".
        n_parameters: Parameters stored.
        n_active_parameters: Parameters that one token uses.
        n_layers: L.
        d_model: D.
        max_seq: Longest sequence in tokens; None if unknown.
        kv_bytes_per_token: Bytes per token in a bf16 KV cache.
    """

    name: str
    family: str
    source: str
    as_of: str
    n_parameters: int
    n_active_parameters: int
    n_layers: int
    d_model: int
    max_seq: int | None
    kv_bytes_per_token: float

    @property
    def line(self) -> str:
        """The numbers as one line of text, without the name."""
        active = ""
        if self.n_active_parameters != self.n_parameters:
            active = f" ({show_count(self.n_active_parameters)} active)"
        context = ""
        if self.max_seq:
            context = f", {self.max_seq:,} tokens"
        return (
            f"{show_count(self.n_parameters)} parameters{active}, {self.n_layers} layers of "
            f"{self.d_model:,}, KV {show_bytes(self.kv_bytes_per_token)} per token{context}"
        )


def catalog() -> tuple[Facts, ...]:
    """The main numbers of all presets, in the order of the index file."""
    return tuple(facts(name) for name in presets())


def facts(name: str) -> Facts:
    """The main numbers of one preset.

    >>> facts("mixtral-8x7b").line
    '46.7B parameters (12.9B active), 32 layers of 4,096, KV 131 kB per token, 32,768 tokens'
    """
    config = load(name)
    preset = presets()[name]
    counts = parameters(config)
    return Facts(
        name=name,
        family=config.family,
        source=preset.source,
        as_of=preset.as_of,
        n_parameters=counts.total,
        n_active_parameters=counts.active,
        n_layers=config.n_layers,
        d_model=config.d_model,
        max_seq=config.max_seq,
        kv_bytes_per_token=kv_bytes_per_token(config),
    )
