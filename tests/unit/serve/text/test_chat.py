"""When a model without a chat template has that of ChatML; what templates get of tool calls."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models

from shardwise.serve.text.chat import CHATML_END, CHATML_START, chat_template
from shardwise.serve.text.vocabulary import ByteVocabulary, FileVocabulary

MARKS = [CHATML_START, CHATML_END]
LETTERS = sorted(set("".join(MARKS)))
VOCABULARY = {text: number for number, text in enumerate([*LETTERS, *MARKS])}


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Letters are tokens, and so are ChatML's marks, which no merge makes."""
    return Tokenizer(models.BPE(vocab=VOCABULARY, merges=[]))


def test_a_tokenizer_that_reads_the_marks(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens(MARKS)
    template = chat_template(None, {}, FileVocabulary(tokenizer))
    assert template is not None
    rendered = template.render([{"role": "user", "content": "hi"}])
    assert rendered.startswith("<|im_start|>user\nhi<|im_end|>\n")


def test_marks_that_are_read_as_letters_are_no_template(tokenizer: Tokenizer) -> None:
    vocabulary = FileVocabulary(tokenizer)
    assert vocabulary.token(CHATML_START) is not None
    assert chat_template(None, {}, vocabulary) is None


def test_a_tokenizer_without_the_marks() -> None:
    assert chat_template(None, {}, ByteVocabulary()) is None


def test_a_template_of_texts_takes_a_message_that_calls_tools() -> None:
    calls = [{"function": {"name": "time", "arguments": "{}"}}]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "noon"},
    ]
    texts = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}"
    template = chat_template(texts, {}, ByteVocabulary())
    assert template is not None
    assert template.render(messages) == "user:hi;assistant:;tool:noon;"
    # A template that knows such messages gets them as they are.
    known = chat_template("{{ messages[1]['content'] is none }}", {}, ByteVocabulary())
    assert known is not None
    assert known.render(messages) == "True"
