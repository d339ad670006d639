"""Grammars that restrict an output: a JSON schema, any JSON object, a regex, a choice of texts.

The package `llguidance` says after each token which tokens may come next.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadInput, MissingExtra
from shardwise.runtime.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer

# Options of JSON grammars. White space is bounded: small models may not end it otherwise.
JSON_OPTIONS = {"whitespace_pattern": r"[ \n\t]{0,20}", "coerce_one_of": True}
CACHED_GRAMMARS = 64  # compiled grammars that are kept, since clients repeat theirs
LONGEST_REASON = 200  # characters


@dataclass(frozen=True, slots=True)
class Grammar:
    """The state of one output in a grammar; a `TokenMask`."""

    matcher: Any

    def allowed(self) -> bytes:
        """Bit i of the little-endian bit string: whether token i may come next."""
        return bytes(self.matcher.compute_bitmask())

    def advance(self, token: int) -> None:
        """Take the sampled token.

        Raises:
            BadInput: the grammar does not allow the token, or became too complex to follow.
        """
        if not self.matcher.consume_token(token) or self.matcher.is_error():
            raise BadInput(f"the grammar cannot go on after token {token}: {self._reason()}.")

    @property
    def complete(self) -> bool:
        """Whether nothing may follow."""
        return bool(self.matcher.is_stopped())

    def _reason(self) -> str:
        return _one_line(self.matcher.get_error())


@dataclass(frozen=True)
class Grammars:
    """Maker of grammars over the tokens of one model.

    Args:
        inner: tokenizer object of the package `llguidance`.
    """

    inner: Any

    def json_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """A grammar of the JSON documents that a schema accepts.

        Raises:
            BadInput: the schema is malformed, accepts nothing, or has a keyword that is not
                supported.
        """
        return self._start("JSON schema", _json_grammar(schema))

    def json_object(self) -> Grammar:
        """A grammar of all JSON objects."""
        return self.json_schema({"type": "object"})

    def regex(self, pattern: str) -> Grammar:
        """A grammar of the texts that a regular expression matches as a whole.

        As in JavaScript, digits and the letters of words are those of ASCII.

        Raises:
            BadInput: the expression is malformed, or looks around or back.
        """
        from llguidance import LLMatcher, regex_to_lark

        pattern = regex_to_lark(pattern, "dw")
        return self._start("regex", LLMatcher.grammar_from_regex(pattern))

    def choice(self, texts: Sequence[str]) -> Grammar:
        """A grammar of some texts.

        Raises:
            BadInput: there is no text.
        """
        if not texts:
            raise BadInput("a choice of no texts: name at least one.")
        return self.regex("|".join(map(re.escape, texts)))

    def _start(self, kind: str, grammar: str) -> Grammar:
        """A grammar before its first token.

        Raises:
            BadInput: the grammar is not valid.
        """
        matcher = self._compiled(grammar)
        if matcher.is_error():
            raise BadInput(f"this {kind} is not supported: {_one_line(matcher.get_error())}.")
        return Grammar(matcher.deep_copy())

    @functools.cached_property
    def _compiled(self) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        compile = functools.partial(LLMatcher, self.inner, log_level=0, limits=limits)
        return functools.lru_cache(maxsize=CACHED_GRAMMARS)(compile)


def grammars(tokenizer: Tokenizer, vocab: int, stop_tokens: frozenset[int]) -> Grammars:
    """Make the grammars of a model; takes up to a second for large vocabularies.

    Args:
        tokenizer: tokenizer of the model.
        vocab: tokens that the model has logits for.
        stop_tokens: tokens that end an output, allowed where a grammar is satisfied.

    Raises:
        BadInput: the model has no stop tokens.
        MissingExtra: the package `llguidance` is not installed.
    """
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise MissingExtra(
            "grammars need the package llguidance: pip install 'shardwise[serve]'"
        ) from None
    if not stop_tokens:
        raise BadInput(
            "grammars need a token that ends an output, and the model's files name none: add "
            "eos_token_id to its generation_config.json."
        )
    if isinstance(tokenizer, FileTokenizer):
        description: Any = tokenizer.inner.to_str()
    elif isinstance(tokenizer, ByteTokenizer):
        description = _byte_tokens(tokenizer)
    else:
        raise TypeError(f"no grammars over the tokens of {tokenizer.name}")
    inner = LLTokenizer(description, n_vocab=vocab, eos_token=sorted(stop_tokens))
    return Grammars(inner=inner)


def _byte_tokens(tokenizer: ByteTokenizer) -> Any:
    """A tokenizer of bytes in the form that `llguidance` takes."""
    from llguidance import TokenizerWrapper

    class ByteTokens:
        eos_token_id = tokenizer.end
        bos_token_id = None
        tokens = (*(bytes([byte]) for byte in range(tokenizer.end)), b"<end>")
        special_token_ids = (tokenizer.end,)

        def __call__(self, text: bytes) -> list[int]:
            return list(text)

    return TokenizerWrapper(ByteTokens())


def _json_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of a JSON schema, as `llguidance` takes it.

    Raises:
        BadInput: the schema is not a JSON object, or is nested too deeply.
    """
    from llguidance import LLMatcher

    if not isinstance(schema, Mapping):
        raise BadInput(f"a JSON schema is an object, not {json.dumps(schema)[:40]}.")
    options: Any = JSON_OPTIONS
    try:
        return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"this JSON schema cannot be read: {_one_line(str(error))}.") from None


def _one_line(error: str) -> str:
    """The reason in an error message of `llguidance`, which may quote the grammar around it."""
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["no reason given"]
    for line in lines:
        if line.startswith("error: "):
            return line.removeprefix("error: ")[:LONGEST_REASON]
    return lines[0].rstrip(".")[:LONGEST_REASON]
