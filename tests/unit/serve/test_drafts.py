"""Drafts change the number of passes, and no output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.runtime.serving.sampling import Draw, draw, verify
from shardwise.serve.draft_model import DraftModel
from shardwise.serve.drafts import Drafter, NgramDrafter, NgramIndex
from shardwise.serve.http.metrics import Metrics
from shardwise.serve.live import Live
from shardwise.serve.programs import Programs, Row
from shardwise.serve.request import LENGTH, STOP, Generation, Sampling
from tests.unit.serve.engines import (
    BLOCK_TOKENS,
    MODEL,
    SEQUENCES,
    TOKENS,
    Greedy,
    OneSize,
    Output,
    generate,
    programs,
    random_weights,
    running,
)

DRAFTED = 3
GREEDY = Sampling(temperature=0)
NOISY = Sampling(temperature=1.2, top_k=40, top_p=0.95, seed=5)
SCARCE: dict[str, object] = {"n_blocks": 18, "watermark": 0.0}


class Oracle(NgramDrafter):
    """Drafts from known continuations, every second draft with an error in its middle."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong: bool) -> None:
        self.texts = texts
        self.wrong = wrong
        self.n_proposed = 0

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[list[int]]:
        drafts = []
        for row, n in zip(rows, wanted, strict=True):
            tokens = row.live.tokens
            matches = (text for text in self.texts if list(text[: len(tokens)]) == tokens)
            drafted = list(next(matches)[len(tokens) : len(tokens) + n]) if n else []
            self.n_proposed += 1
            if self.wrong and self.n_proposed % 2 and len(drafted) > 1:
                drafted[1] = (drafted[1] + 1) % MODEL.vocab
            drafts.append(drafted)
        return drafts


class OneSizeDraftModel(OneSize, DraftModel):
    """A small model whose programs have one number of rows."""


@pytest.fixture(scope="module")
def compiled() -> Programs:
    return programs(OneSize, max_drafted=DRAFTED, max_tokens=SEQUENCES * TOKENS)


@pytest.fixture(scope="module")
def plain() -> Greedy:
    return Greedy()


@pytest.fixture(scope="module")
def small() -> Programs:
    return programs(OneSizeDraftModel, n_drafted=DRAFTED, max_tokens=SEQUENCES * TOKENS)


def prompts() -> list[tuple[int, ...]]:
    """Prompts with and without repetition, one of whole blocks, two that are equal."""
    random = np.random.default_rng(0)
    texts = [random.integers(0, MODEL.vocab, n).tolist() for n in (1, 24, 37, 24, 5, 30)]
    texts[1] = texts[3][:12] * 2
    texts[4] = [7, 8] * 9
    texts[5] = texts[3]
    return [tuple(text) for text in texts]


def requests(sampling: Sampling = GREEDY, max_tokens: int = 14) -> list[Generation]:
    return [
        Generation(id=str(i), prompt=prompt, max_tokens=max_tokens, sampling=sampling)
        for i, prompt in enumerate(prompts())
    ]


def drafted_outputs(
    compiled: Programs, drafter: Drafter, asked: Sequence[Generation], **limits: object
) -> tuple[list[Output], dict[str, int]]:
    """Outputs with drafts, and the engine's counts."""
    with running(compiled, drafter, tokens_per_pass=1 + DRAFTED, **limits) as engine:
        outputs = generate(engine, asked)
        stats = engine.stats()
    assert stats.running == stats.waiting == stats.blocks_used == 0
    assert stats.generated_tokens == sum(len(output.tokens) for output in outputs)
    assert (stats.preemptions > 0) == ("n_blocks" in limits)
    counts = ("drafted_tokens", "accepted_tokens", "passes")
    return outputs, {name: getattr(stats, name) for name in counts}


def texts(plain: Greedy) -> list[list[int]]:
    """The prompts with their continuations."""
    return [[*prompt, *plain.continuation(prompt, 14)] for prompt in prompts()]


def long(drafts: str) -> Any:
    """A parameter whose programs take long to compile, for `make oracle`."""
    return pytest.param(drafts, marks=pytest.mark.oracle)


@pytest.mark.parametrize("limits", [{}, {"max_sequences": 1}, {"max_tokens": 5}, SCARCE], ids=str)
@pytest.mark.parametrize(
    "drafts", ["n-grams", *map(long, ("same model", "other model")), "right", "wrong"]
)
def test_greedy_outputs_are_those_of_a_plain_loop(
    compiled: Programs, plain: Greedy, small: DraftModel, drafts: str, limits: dict[str, object]
) -> None:
    whole = texts(plain)
    small.weights = random_weights(2 if drafts == "other model" else 1)
    drafter = {
        "n-grams": NgramDrafter(),
        "right": Oracle(whole, wrong=False),
        "wrong": Oracle(whole, wrong=True),
    }.get(drafts, small)
    outputs, counts = drafted_outputs(compiled, drafter, requests(), **limits)
    assert [[*p, *o.ids] for p, o in zip(prompts(), outputs, strict=True)] == whole
    assert {output.finish for output in outputs} == {LENGTH}
    drafted, accepted = counts["drafted_tokens"], counts["accepted_tokens"]
    if drafts == "right" or (drafts == "same model" and "n_blocks" not in limits):
        assert accepted == drafted > 0
    elif drafts == "same model":  # see `DraftModel` for what a preempted sequence may lack
        assert 0.8 * drafted < accepted <= drafted
    else:
        assert accepted < drafted
        assert accepted > 0 or drafts == "other model"


def test_drafted_and_accepted_tokens_are_counted(compiled: Programs, plain: Greedy) -> None:
    drafter = Oracle(texts(plain), wrong=True)
    with running(compiled, drafter, tokens_per_pass=1 + DRAFTED) as engine:
        generate(engine, [requests()[1]])
        stats = engine.stats()
        metrics = Metrics(engine, "tiny").text().decode()
    # Two passes over the prompt give a token; four drafts of 3, of which 1 and 3 are accepted in
    # turns, give 2 and 4; the last token needs no draft.
    assert (stats.drafted_tokens, stats.accepted_tokens, stats.passes) == (12, 8, 7)
    assert stats.generated_tokens == 14
    for name, count in (("draft", 12), ("accepted", 8)):
        sample = f'spec_decode_num_{name}_tokens_total{{model_name="tiny"}}'
        assert f"shardwise:{sample} {count}.0" in metrics


def test_an_output_ends_between_accepted_drafts(compiled: Programs, plain: Greedy) -> None:
    asked = requests()[1]
    whole = texts(plain)[1][len(asked.prompt) :]
    stops = [replace(asked, id=f"{i}", stop_tokens=frozenset([t])) for i, t in enumerate(whole)]
    lengths = [replace(asked, id=f"{n} tokens", max_tokens=n) for n in range(1, 14)]
    drafter = Oracle(texts(plain), wrong=False)
    outputs, _ = drafted_outputs(compiled, drafter, [*stops, *lengths])
    for request, output in zip([*stops, *lengths], outputs, strict=True):
        n = request.max_tokens
        for stop in request.stop_tokens:
            n = whole.index(stop)
        assert output.ids == whole[:n]
        assert output.finish == (STOP if request.stop_tokens else LENGTH)


@pytest.mark.oracle
@pytest.mark.parametrize("limits", [{}, SCARCE], ids=str)
def test_seeded_draws_are_equal_with_and_without_drafts(
    compiled: Programs, small: DraftModel, limits: dict[str, object]
) -> None:
    asked = requests(NOISY)
    with running(compiled, **limits) as engine:
        expected = [output.ids for output in generate(engine, asked)]
    small.weights = random_weights()
    for drafter in (NgramDrafter(), small):
        outputs, counts = drafted_outputs(compiled, drafter, asked, **limits)
        assert [output.ids for output in outputs] == expected
    # A model with the same weights drafts the tokens that are drawn.
    if "n_blocks" not in limits:
        assert counts["accepted_tokens"] == counts["drafted_tokens"] > 0


def test_requests_without_drafts_share_passes_with_those_that_have_them(
    compiled: Programs, plain: Greedy
) -> None:
    penalty = Sampling(temperature=0, presence_penalty=0.7, frequency_penalty=0.4, logprobs=2)
    asked = requests()
    asked[2] = replace(asked[2], sampling=penalty)
    with running(compiled) as engine:
        (alone,) = generate(engine, [asked[2]])
    outputs, counts = drafted_outputs(compiled, Oracle(texts(plain), wrong=False), asked)
    assert outputs[2].ids == alone.ids
    for token, expected in zip(outputs[2].tokens, alone.tokens, strict=True):
        assert token.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert [id for id, _ in token.top] == [id for id, _ in expected.top]
    others = [i for i in range(len(asked)) if i != 2]
    assert all([*asked[i].prompt, *outputs[i].ids] == texts(plain)[i] for i in others)
    assert counts["accepted_tokens"] > 0


def test_keys_and_values_of_refused_drafts_are_never_read(
    compiled: Programs, plain: Greedy
) -> None:
    prompt, table = prompts()[1][:10], [3, 9, 5, 11, 2]
    right = plain.continuation(prompt, 9)
    wrong = [(token + 1) % MODEL.vocab for token in right]
    live = Live(
        generation=Generation(id="row", prompt=prompt, max_tokens=9, sampling=GREEDY),
        deliver=lambda token: None,
        seed=0,
    )

    def verified(past: int, tokens: Sequence[int]) -> list[int]:
        row = Row(live=live, slot=0, tokens=tokens, past=past, table=table)
        drawn = compiled.verify([row])
        return [
            int(drawn.first.token_B[0]),
            *drawn.next_BK[0, : drawn.accepted_B[0]].tolist(),
        ]

    def keys(position: int) -> np.ndarray:
        block, slot = table[position // BLOCK_TOKENS], position % BLOCK_TOKENS
        return np.asarray(jax.tree.leaves(compiled._cache)[0][block, :, slot])

    compiled.logits([Row(live=live, slot=0, tokens=prompt, past=0, table=table)])
    assert verified(10, [right[0], *wrong[1:4]]) == right[1:2]
    garbage = keys(11)
    assert verified(11, right[1:5]) == right[2:6]
    assert not np.allclose(keys(11), garbage)
    assert verified(15, [right[5], right[6], wrong[7], right[8]]) == right[6:8]


def test_the_next_two_tokens_have_the_distribution_of_the_model() -> None:
    V, n = 5, 20_000
    random = np.random.default_rng(0)
    first_V, second_VV = (random.normal(size=shape).astype(np.float32) for shape in (V, (V, V)))
    drafted_B = random.integers(0, V, n)
    temperature = 0.8
    fields = (temperature, 0, 1.0, 0.0)
    dtypes = (jnp.float32, jnp.int32, jnp.float32, jnp.float32)
    columns = [jnp.full(n, x, dtype) for x, dtype in zip(fields, dtypes, strict=True)]
    how = Draw(*columns, jnp.arange(n, dtype=jnp.uint32), jnp.full(n, 7, jnp.int32))
    logits_BTV = jnp.stack([jnp.broadcast_to(first_V, (n, V)), second_VV[drafted_B]], axis=1)
    drawn = jax.jit(verify)(logits_BTV, drafted_B[:, None], jnp.ones(n, jnp.int32), how)
    first_B = np.asarray(drawn.first.token_B)
    # After a refused draft, the next pass draws the second token.
    after = how._replace(position_B=how.position_B + 1)
    plain_B = np.asarray(jax.jit(draw)(jnp.asarray(second_VV[first_B]), after).token_B)
    accepted_B = np.asarray(drawn.accepted_B) == 1
    assert (accepted_B == (first_B == drafted_B)).all()
    second_B = np.where(accepted_B, np.asarray(drawn.next_BK)[:, 0], plain_B)
    assert (second_B == plain_B).all()
    p_V, p_VV = (
        np.exp(x / temperature) / np.exp(x / temperature).sum(-1, keepdims=True)
        for x in (first_V.astype(float), second_VV.astype(float))
    )
    expected_VV = n * p_V[:, None] * p_VV
    counts_VV = np.zeros((V, V))
    np.add.at(counts_VV, (first_B, second_B), 1)
    chi_square = ((counts_VV - expected_VV) ** 2 / expected_VV).sum()
    assert chi_square < 51.2  # exceeded once in a thousand with 24 degrees of freedom
    assert accepted_B.mean() == pytest.approx(p_V[drafted_B].mean(), abs=0.01)


@pytest.mark.parametrize("vocab", [2, 4, 50])
def test_n_grams_are_the_longest_match(vocab: int) -> None:
    tokens = np.random.default_rng(vocab).integers(0, vocab, 60).tolist()
    growing = NgramIndex()
    for n in range(60):
        text = tokens[:n]
        drafted = growing.propose(text, 4)
        assert drafted == NgramIndex().propose(text, 4)
        lengths = {start: match_length(text, start) for start in range(max(0, n - 12), n)}
        longest = max(lengths.values(), default=0)
        if longest < 2:
            assert not drafted or n > 12
            continue
        repeated = text + drafted
        start = max(start for start in lengths if lengths[start] == longest)
        if longest < 16 and not any(match_length(text, s) > longest for s in range(n - 12)):
            assert drafted == [repeated[start + i] for i in range(4)]


def match_length(text: Sequence[int], start: int) -> int:
    """Number of tokens before `start` that equal the last ones."""
    length = 0
    while length < start and text[start - 1 - length] == text[-1 - length]:
        length += 1
    return length


def test_short_texts_have_no_drafts() -> None:
    for text in ([], [1], [1, 1], [1, 2, 3]):
        assert NgramIndex().propose(text, 3) == []
    assert NgramIndex().propose([1, 1, 1], 3) == [1, 1, 1]
    assert NgramIndex().propose([5, 1, 2, 3, 5, 1], 0) == []
