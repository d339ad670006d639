"""The texts and grammars of a served model, as the server takes them."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from shardwise.runtime.tokenizer import FileTokenizer
from shardwise.serve.model_files import ServedModel
from shardwise.serve.request import TokenMask
from shardwise.serve.text.structure import CHOICE, JSON_SCHEMA, REGEX, GrammarSpec
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


class ModelGrammar:
    """Maker of masks for a model's structured outputs, from several threads.

    The tables of the model's tokens take a second to build: the first mask waits for them, and a
    server that makes none does without.

    Args:
        model: the model.
        stop_tokens: tokens that end an output.
    """

    def __init__(self, model: ServedModel, stop_tokens: frozenset[int]) -> None:
        self._model = model
        self._stop_tokens = stop_tokens
        self._lock = threading.Lock()
        self._grammars: Grammars | None = None

    def __call__(self, spec: GrammarSpec) -> TokenMask:
        """The mask of one output.

        Raises:
            BadInput: the structure is malformed or not supported, or the model names no stop token.
            MissingExtra: the package llguidance is not installed.
        """
        grammars = self._built()
        if spec.kind == REGEX:
            return grammars.regex(spec.definition)
        if spec.kind == CHOICE:
            return grammars.choice(json.loads(spec.definition))
        if spec.kind == JSON_SCHEMA:
            return grammars.json_schema(json.loads(spec.definition))
        return grammars.json_object()

    def _built(self) -> Grammars:
        from shardwise.serve.grammar import grammars

        with self._lock:
            if self._grammars is None:
                model = self._model
                self._grammars = grammars(model.tokenizer, model.config.vocab, self._stop_tokens)
            return self._grammars
