"""What the server knows of a model's texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.serve.text.chat import CHATML_END, ChatTemplate, chat_template
from shardwise.serve.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts and tokens of a served model.

    Args:
        model: name that clients call the model by.
        vocabulary: conversion between texts and tokens.
        template: of conversations; None if the model takes none.
        stop_tokens: tokens that end an output.
        bos: tokens that a prompt begins with, unless a chat template wrote it.
    """

    model: str
    vocabulary: Vocabulary
    template: ChatTemplate | None
    stop_tokens: frozenset[int]
    bos: tuple[int, ...] = ()

    def prompt(self, text: str) -> list[int]:
        """The tokens of a prompt that is given as a text."""
        return [*self.bos, *self.vocabulary.encode(text)]


def texts_of(
    model: str,
    vocabulary: Vocabulary,
    *,
    stop_tokens: frozenset[int],
    template: str | None = None,
    special_tokens: Mapping[str, str] | None = None,
    bos_token: int | None = None,
) -> Texts:
    """Texts of a model.

    Args:
        model: name that clients call the model by.
        vocabulary: of the model's tokenizer.
        stop_tokens: tokens that end an output.
        template: Jinja source of the chat template; None if the model has none.
        special_tokens: texts of tokens that templates name, by name, such as `bos_token`.
        bos_token: token that a prompt begins with; None if the model was trained without.

    Raises:
        BadFile: the template has a syntax error.
        MissingExtra: the package jinja2 is not installed.
    """
    compiled = chat_template(template, special_tokens or {}, vocabulary)
    if template is None and compiled is not None:  # ChatML
        end = vocabulary.token(CHATML_END)
        stop_tokens = stop_tokens.union([end] if end is not None else [])
    bos = () if bos_token is None else (bos_token,)
    return Texts(
        model=model, vocabulary=vocabulary, template=compiled, stop_tokens=stop_tokens, bos=bos
    )
