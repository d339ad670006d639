"""A model with all that serving it needs: weights, tokenizer, chat template, stop tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shardwise.models import ModelConfig
from shardwise.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from shardwise.runtime.layout.sharding import Table
    from shardwise.runtime.serving.engine_state import EngineState
    from shardwise.runtime.weights.descriptions import Tree


class Weights(Protocol):
    """The weights of a model in its files."""

    def load(self, table: Table, dtype: Any) -> Tree:
        """Load all weights, sharded by the table, into the tree of `descriptions.describe`.

        Args:
            table: sharding rules on the mesh.
            dtype: dtype of the arrays.

        Raises:
            BadFile: tensors are missing or unreadable, or belong to another model.
            BadInput: the tensor names of the family are unknown.
        """
        ...

    def load_for(self, engine: EngineState) -> Tree:
        """Load all weights as an engine has them: cast or quantized, and sharded.

        Raises:
            BadFile, BadInput: as `load`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that can be served.

    Args:
        name: name that clients call it by.
        source: folder or file that it comes from.
        config: its architecture.
        weights: its weights, which are not loaded yet.
        tokenizer: conversion between text and tokens; special tokens in a text are recognized.
        max_context: the most tokens of prompt and output together.
        stop_tokens: tokens that end an output.
        bos_token: token that begins a sequence; None without.
        adds_bos: whether a prompt begins with `bos_token`; a chat template writes its own.
        chat_template: Jinja template of a conversation; None if the model has none.
        special_tokens: texts of tokens that templates name, by name, such as `bos_token`.
    """

    name: str
    source: Path
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    max_context: int
    stop_tokens: frozenset[int]
    bos_token: int | None = None
    adds_bos: bool = False
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
