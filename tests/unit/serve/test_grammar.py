"""Outputs under a grammar: whatever is drawn from the allowed tokens ends in a text it accepts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shardwise.errors import BadInput
from shardwise.runtime.tokenizer import ByteTokenizer, Tokenizer, file_tokenizer
from shardwise.serve.grammar import Grammar, Grammars, grammars
from shardwise.serve.live import Live
from shardwise.serve.request import STOP, TOO_COMPLEX, Generation, Token
from tests.unit.serve.model_files import tiny

WALKS = 20
LONGEST_WALK = 500
TOKENIZERS: dict[str, tuple[Tokenizer, int, int]] = {  # tokenizer, logits, stop token
    "bpe": (file_tokenizer(tiny.bpe_tokenizer(), 2), 400, 2),
    "bytes": (ByteTokenizer(), 264, 256),
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "one": {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "one"],
    "additionalProperties": False,
}


@pytest.fixture(params=sorted(TOKENIZERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def maker(name: str) -> Grammars:
    tokenizer, vocab, stop = TOKENIZERS[name]
    return grammars(tokenizer, vocab, frozenset({stop}))


def tokens_allowed(mask: Grammar, vocab: int) -> list[int]:
    bits = mask.allowed()
    return [token for token in range(vocab) if bits[token // 8] >> token % 8 & 1]


def walk(name: str, mask: Grammar, draw: random.Random) -> str:
    """Draw allowed tokens until the stop token, or until nothing may follow."""
    tokenizer, vocab, stop = TOKENIZERS[name]
    tokens: list[int] = []
    while not mask.complete:
        assert len(tokens) < LONGEST_WALK
        token = draw.choice(tokens_allowed(mask, vocab))
        if token == stop:
            break
        mask.advance(token)
        tokens.append(token)
    return tokenizer.decode(tokens)


def walks(name: str, start: Callable[[Grammars], Grammar]) -> list[str]:
    draw = random.Random(0)
    made = maker(name)
    return [walk(name, start(made), draw) for _ in range(WALKS)]


def test_json_schema(name: str) -> None:
    for text in walks(name, lambda made: made.json_schema(PERSON)):
        person = json.loads(text)
        assert set(person) == set(PERSON["required"])
        assert isinstance(person["name"], str)
        assert len(person["name"]) <= 8
        assert isinstance(person["age"], int)
        assert 0 <= person["age"] <= 120
        assert len(person["tags"]) <= 3
        assert set(person["tags"]) <= {"a", "b"}
        assert person["one"] in (True, False, None)


def test_references_in_a_schema(name: str) -> None:
    point = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    schema = {
        "$defs": {"point": point},
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
        "required": ["from", "to"],
        "additionalProperties": False,
    }
    for text in walks(name, lambda made: made.json_schema(schema)):
        lengths = [len(point) for point in json.loads(text).values()]
        assert lengths == [2, 2]


def test_json_object_may_be_empty_and_is_an_object(name: str) -> None:
    _, vocab, _ = TOKENIZERS[name]
    tokenizer = TOKENIZERS[name][0]
    mask = maker(name).json_object()
    starts = {tokenizer.decode([token])[:1] for token in tokens_allowed(mask, vocab)}
    assert starts <= {"{", " ", "\n", "\t"}
    for token in tokenizer.encode('{"a": [1, {}]}'):
        assert not mask.complete
        assert token in tokens_allowed(mask, vocab)
        mask.advance(token)
    assert TOKENIZERS[name][2] in tokens_allowed(mask, vocab)


@pytest.mark.parametrize(
    "pattern",
    [r"[a-z]{1,5}@[a-z]{2,3}\.(com|de)", r"\d{4}/\d{2}-\d{2}", "ä|ö", r"(\w{3}|no)!?", r"a?/{2}"],
)
def test_regex(name: str, pattern: str) -> None:
    for text in walks(name, lambda made: made.regex(pattern)):
        assert re.fullmatch(pattern, text, re.ASCII)


def test_choice(name: str) -> None:
    texts = ["yes", "no", "don't know", "a.b|c", "a.b"]
    drawn = set(walks(name, lambda made: made.choice(texts)))
    assert drawn <= set(texts)
    assert len(drawn) > 1


def test_a_grammar_is_compiled_once_and_each_output_has_its_state() -> None:
    made = maker("bytes")
    first = made.regex("ab")
    second = made.regex("ab")
    first.advance(ord("a"))
    assert tokens_allowed(first, 264) == [ord("b")]
    assert tokens_allowed(second, 264) == [ord("a")]
    assert made._compiled.cache_info().misses == 1


def test_the_mask_has_a_bit_for_each_logit() -> None:
    assert len(maker("bpe").json_object().allowed()) * 8 >= 400


def test_several_stop_tokens_end_an_output() -> None:
    tokenizer = TOKENIZERS["bpe"][0]
    mask = grammars(tokenizer, 400, frozenset({0, 2})).regex("a+")
    mask.advance(tokenizer.encode("a")[0])
    assert {0, 2} < set(tokens_allowed(mask, 400))
    mask.advance(0)
    assert mask.complete


def test_a_token_outside_the_grammar_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot go on after token 122"):
        maker("bytes").regex("ab").advance(ord("z"))


def live_of(name: str, pattern: str) -> Live:
    """A request for a text of a regex, which delivers to nobody."""
    stop = TOKENIZERS[name][2]
    return Live(
        generation=Generation(
            id="a",
            prompt=(1,),
            max_tokens=100,
            mask=maker(name).regex(pattern),
            stop_tokens=frozenset({stop}),
        ),
        deliver=lambda token: None,
        seed=0,
    )


def finish(live: Live) -> str:
    return live.last.finish if live.last else ""


def test_a_grammar_that_fails_ends_its_request() -> None:
    live = live_of("bytes", "ab")
    live.take(Token(ord("a")))
    assert finish(live) == ""
    live.take(Token(ord("z")))
    assert finish(live) == TOO_COMPLEX


def test_a_grammar_that_is_satisfied_takes_a_stop_token() -> None:
    live = live_of("bytes", "a*")
    live.take(Token(ord("a")))
    live.take(Token(256))
    assert finish(live) == STOP


def test_an_output_does_not_stop_where_its_grammar_became_too_complex() -> None:
    live = live_of("bpe", "((a{1,100}){1,100}){1,100}")
    mask = live.generation.mask
    assert mask is not None
    while not finish(live):
        bits = np.frombuffer(mask.allowed(), np.uint8)
        live.take(Token(int(np.flatnonzero(np.unpackbits(bits, bitorder="little"))[-1])))
    assert finish(live) == TOO_COMPLEX


def nested(depth: int) -> dict[str, Any]:
    """A schema in a schema, and so on."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "Invalid type: strin"),
        ({"not": {"type": "string"}}, 'Unimplemented keys: ["not"]'),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum (5) is greater"),
        ({"$ref": "#/x"}, "Pointer '/x' does not exist"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ([], "a JSON schema is an object, not []"),
        (nested(200), "recursion limit exceeded"),
        ({"const": float("inf")}, "cannot be read: expected value"),
    ],
)
def test_bad_schemas(schema: Any, reason: str) -> None:
    with pytest.raises(BadInput) as error:
        maker("bytes").json_schema(schema)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("(", "unclosed group"), ("(?=a)b", "look-around")],
)
def test_bad_regexes(pattern: str, reason: str) -> None:
    with pytest.raises(BadInput) as error:
        maker("bytes").regex(pattern)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_without_stop_tokens_has_no_grammars() -> None:
    with pytest.raises(BadInput, match="a token that ends an output"):
        grammars(ByteTokenizer(), 264, frozenset())
    with pytest.raises(BadInput, match="a choice of no texts"):
        maker("bytes").choice([])
