"""The texts and grammars of a served model, as the server takes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardwise.runtime.tokenizer import FileTokenizer
from shardwise.serve.model_files import ServedModel
from shardwise.serve.request import TokenMask
from shardwise.serve.text.structure import CHOICE, JSON_SCHEMA, REGEX, Grammar, GrammarSpec
from shardwise.serve.text.texts import Texts, texts_of
from shardwise.serve.text.vocabulary import ByteVocabulary, FileVocabulary, Vocabulary

if TYPE_CHECKING:
    from shardwise.serve.grammar import Grammars


def texts_of_model(model: ServedModel) -> Texts:
    """Texts and tokens of a model.

    Raises:
        BadFile: its chat template has a syntax error.
        MissingExtra: the package jinja2 is not installed.
    """
    vocabulary: Vocabulary = ByteVocabulary()
    if isinstance(model.tokenizer, FileTokenizer):
        vocabulary = FileVocabulary(model.tokenizer.inner)
    return texts_of(
        model.name,
        vocabulary,
        stop_tokens=model.stop_tokens,
        template=model.chat_template,
        special_tokens=model.special_tokens,
        bos_token=model.bos_token if model.adds_bos else None,
    )


def grammar_of_model(model: ServedModel, stop_tokens: frozenset[int]) -> Grammar | None:
    """Maker of masks for a model's structured outputs; None if they are not available.

    Args:
        stop_tokens: tokens that end an output.
    """
    from shardwise.errors import BadInput, MissingExtra
    from shardwise.serve.grammar import grammars

    try:
        made = grammars(model.tokenizer, model.config.vocab, stop_tokens)
    except (BadInput, MissingExtra):
        return None
    return lambda spec: _mask(made, spec)


def _mask(made: Grammars, spec: GrammarSpec) -> TokenMask:
    if spec.kind == REGEX:
        return made.regex(spec.definition)
    if spec.kind == CHOICE:
        return made.choice(json.loads(spec.definition))
    if spec.kind == JSON_SCHEMA:
        return made.json_schema(json.loads(spec.definition))
    return made.json_object()
