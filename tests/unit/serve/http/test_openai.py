"""The official client of OpenAI against the server."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from tests.unit.serve.http.serving import MODEL, Served, texts
from tests.unit.serve.tiny import byte_level

MESSAGES = [{"role": "user", "content": "hi"}]


def length(text: str) -> int:
    return len(byte_level().encode(text).ids)


def test_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="the cat", max_tokens=9)
    assert answer.choices[0].text == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == length("the cat")
    assert answer.usage.completion_tokens == length("hello world")


def test_max_tokens_end_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="x", max_tokens=1)
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("the cat", 1), (["a", "b"], 2), ([5, 6, 7], 1), ([[5, 6], [7], [8]], 3)],
)
def test_prompts_of_all_kinds(client: OpenAI, prompt: object, prompts: int) -> None:
    answer = client.completions.create(model=MODEL, prompt=prompt, n=2, echo=True)  # type: ignore[arg-type]
    assert [choice.index for choice in answer.choices] == list(range(2 * prompts))
    first = prompt if isinstance(prompt, str) else None
    if first:
        assert answer.choices[1].text == first + "hello world"


def test_a_stream_of_completions_is_the_whole(client: OpenAI, served: Served) -> None:
    served.replies.text = "the cat sat: é 😀 !"
    stream = client.completions.create(
        model=MODEL,
        prompt=["a", "b"],
        echo=True,
        max_tokens=99,
        stream=True,
        stream_options={"include_usage": True},
    )
    found = ["", ""]
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            found[choice.index] += choice.text
    assert found == [f"a{served.replies.text}", f"b{served.replies.text}"]
    assert usage is not None
    assert usage.completion_tokens == 2 * length(served.replies.text)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_log_probabilities_of_a_prompt(client: OpenAI, max_tokens: int) -> None:
    prompt = "é cat"
    answer = client.completions.create(
        model=MODEL, prompt=prompt, echo=True, logprobs=1, max_tokens=max_tokens
    )
    (choice,) = answer.choices
    found = choice.logprobs
    assert found is not None
    assert found.tokens
    assert found.text_offset
    assert found.top_logprobs
    assert choice.text == prompt + "hello" * max_tokens
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == max_tokens
    n = length(prompt)
    assert len(found.tokens) == n + max_tokens
    assert found.token_logprobs == [None, *(-float(i) for i in range(1, n)), *[-0.5] * max_tokens]
    assert found.top_logprobs[0] is None
    assert set(found.top_logprobs[1].values()) == {-0.1, -1.0}
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset:].startswith(token)


def test_log_probabilities_of_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="x", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["hello", " world"]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.text_offset == [0, len("hello")]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0]["hello"] == -0.5


def test_a_conversation(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "system", "content": "Be short."}, *MESSAGES]
    )
    assert answer.choices[0].message.content == "hello world"
    prompt = byte_level().decode(served.engine.seen[-1].prompt, skip_special_tokens=False)
    assert prompt == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    end = byte_level().token_to_id("<|im_end|>")
    assert end in served.engine.seen[-1].stop_tokens


def test_parts_of_text_are_joined(client: OpenAI, served: Served) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])  # type: ignore[list-item]
    assert "one\ntwo" in byte_level().decode(served.engine.seen[-1].prompt)


def test_a_streamed_conversation(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=2, logprobs=True, top_logprobs=1, stream=True
    )
    found = ["", ""]
    scored = [0, 0]
    finish = ["", ""]
    for chunk in stream:
        for choice in chunk.choices:
            found[choice.index] += choice.delta.content or ""
            if choice.logprobs and choice.logprobs.content:
                scored[choice.index] += len(choice.logprobs.content)
            finish[choice.index] = choice.finish_reason or finish[choice.index]
    assert found == ["hello world"] * 2
    assert finish == ["stop"] * 2
    assert scored == [length("hello world")] * 2


def test_log_probabilities_of_a_conversation(client: OpenAI, served: Served) -> None:
    served.replies.text = "é"
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    written = [byte for token in logprobs.content for byte in token.bytes or []]
    assert bytes(written).decode() == "é"
    assert len(logprobs.content[0].top_logprobs) == 2


def test_stop_strings_are_not_sent(client: OpenAI, served: Served) -> None:
    served.replies.text = "the cat sat on the mat"
    served.replies.endless = True
    answer = client.completions.create(
        model=MODEL, prompt="x", stop=["n the", "zz"], max_tokens=500
    )
    assert answer.choices[0].text == "the cat sat o"
    assert answer.choices[0].finish_reason == "stop"
    kept = client.completions.create(
        model=MODEL,
        prompt="x",
        stop="n the",
        max_tokens=500,
        extra_body={"include_stop_str_in_output": True},
    )
    assert kept.choices[0].text == "the cat sat on the"


def test_what_is_asked_reaches_the_engine(client: OpenAI, served: Served) -> None:
    client.completions.create(
        model=MODEL,
        prompt="x",
        n=2,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        frequency_penalty=-1,
        seed=7,
        logit_bias={"5": -100},
        user="ann",
        extra_body={"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True},
    )
    first, second = served.engine.seen[-2:]
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.5, 0.9, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.top_k, sampling.repetition_penalty) == (0, 1.1)
    assert sampling.logit_bias == {5: -100.0}
    assert (sampling.seed, second.sampling.seed) == (7, 8)
    assert first.stop_tokens == frozenset()
    assert first.client == "user ann"
    assert first.max_tokens == 16


def test_without_user_the_peer_is_the_client(client: OpenAI, served: Served) -> None:
    client.completions.create(model=MODEL, prompt="x")
    assert served.engine.seen[-1].client == "host 127.0.0.1"


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == texts().model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_failure_of_the_engine(client: OpenAI, served: Served) -> None:
    served.engine.fails = True
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="engine could not go on"):
            client.completions.create(model=MODEL, prompt="x", stream=stream)


def test_an_error_in_a_stream(client: OpenAI, served: Served) -> None:
    served.replies.endless = True
    served.engine.step_seconds = 0.01
    stream = client.completions.create(model=MODEL, prompt="x", max_tokens=900, stream=True)
    next(stream)
    served.engine.fails = True
    with pytest.raises(openai.APIError, match="engine could not go on"):
        for _ in stream:
            pass
