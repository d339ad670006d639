"""Texts that come token by token, against decoding at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.serve.text.detokenize import Detokenizer, StopStrings
from shardwise.serve.text.vocabulary import (
    REPLACEMENT,
    ByteVocabulary,
    FileVocabulary,
    Vocabulary,
)
from tests.unit.serve.tiny import byte_level, sentence_piece

VOCABULARIES = {
    "byte-level": FileVocabulary(byte_level()),
    "SentencePiece": FileVocabulary(sentence_piece()),
    "bytes": ByteVocabulary(),
}
KINDS = st.sampled_from(sorted(VOCABULARIES))
# Text with much that takes several tokens: families of emoji, accents, scripts, line ends.
LETTERS = st.sampled_from([*"the catsö\n é߀", "日本", "👨‍👩‍👧", "🇳🇴", "a\u0301", "\u200b", "𝕏"])
TEXTS = st.lists(LETTERS, max_size=20).map("".join)


def pieces(vocabulary: Vocabulary, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(vocabulary)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.finish()]


@given(KINDS, TEXTS)
def test_pieces_add_to_the_text(kind: str, text: str) -> None:
    vocabulary = VOCABULARIES[kind]
    tokens = vocabulary.encode(text)
    found = pieces(vocabulary, tokens)
    assert "".join(found) == vocabulary.decode(tokens)
    assert not any(REPLACEMENT in piece for piece in found)


@given(st.sampled_from(["byte-level", "bytes"]), st.lists(st.integers(0, 258), max_size=40))
def test_bytes_that_are_no_text_come_as_decoded_at_once(kind: str, tokens: list[int]) -> None:
    vocabulary = VOCABULARIES[kind]
    assert "".join(pieces(vocabulary, tokens)) == vocabulary.decode(tokens)


@given(KINDS, st.lists(st.integers(0, 258), max_size=200))
def test_random_tokens_are_held_back_briefly(kind: str, tokens: list[int]) -> None:
    vocabulary = VOCABULARIES[kind]
    found = pieces(vocabulary, tokens)
    assert len(found[-1]) <= 4


def test_half_a_character_is_held_back() -> None:
    vocabulary = VOCABULARIES["byte-level"]
    tokens = vocabulary.encode("a😀")
    assert len(tokens) == 5
    assert pieces(vocabulary, tokens) == ["a", "", "", "", "😀", ""]
    assert pieces(vocabulary, tokens[:3]) == ["a", "", "", REPLACEMENT]


def test_a_continuation_keeps_its_space() -> None:
    vocabulary = VOCABULARIES["SentencePiece"]
    prompt = vocabulary.encode("the cat")
    more = vocabulary.encode("sat")
    begun = Detokenizer(vocabulary)
    continued = Detokenizer(vocabulary, prompt)
    assert "".join(begun.push(token) for token in more) == "sat"
    assert "".join(continued.push(token) for token in more) == " sat"


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    vocabulary = VOCABULARIES["byte-level"]
    tokens = vocabulary.encode("the<|im_end|> cat")
    shown = Detokenizer(vocabulary, special=True)
    assert "".join(pieces(vocabulary, tokens)) == "the cat"
    assert "".join(shown.push(token) for token in tokens) == "the<|im_end|> cat"


@given(KINDS, TEXTS)
def test_bytes_of_tokens_add_to_the_text(kind: str, text: str) -> None:
    vocabulary = VOCABULARIES[kind]
    written = b"".join(vocabulary.bytes_of(token) for token in vocabulary.encode(text))
    assert written.decode() in (text, f" {text}")


ALPHABET = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Start and end of the stop that a reader of single letters sees first."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts), end
    return None


@given(st.lists(ALPHABET, max_size=8), STOPS, st.booleans())
def test_stop_strings_end_a_text_however_it_comes(
    parts: list[str], stops: list[str], include: bool
) -> None:
    matcher = StopStrings(stops, include=include)
    found = ""
    for part in parts:
        found += matcher.push(part)
    stopped = matcher.stopped
    found += matcher.finish()
    text = "".join(parts)
    first = first_stop(text, stops)
    assert stopped == (first is not None)
    if first is None:
        assert found == text
    else:
        assert found == text[: first[1] if include else first[0]]


@given(KINDS, TEXTS, st.lists(LETTERS, min_size=1, max_size=3).map("".join))
def test_stop_strings_across_tokens(kind: str, text: str, stop: str) -> None:
    vocabulary = VOCABULARIES[kind]
    detokenizer = Detokenizer(vocabulary)
    matcher = StopStrings([stop])
    found = ""
    tokens = vocabulary.encode(text)
    for token in tokens:
        found += matcher.push(detokenizer.push(token))
    found += matcher.push(detokenizer.finish()) + matcher.finish()
    assert found == vocabulary.decode(tokens).partition(stop)[0]


@pytest.mark.parametrize("text", ["aab", "aaab"])
def test_a_beginning_is_held_back(text: str) -> None:
    matcher = StopStrings(["aab"])
    sent = [matcher.push(letter) for letter in text]
    assert matcher.stopped
    assert "".join(sent) == text[: len(text) - 3]
