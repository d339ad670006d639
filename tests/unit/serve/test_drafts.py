"""Drafts change the number of passes, and no output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.runtime.serving.sampling import Draw, draw, verify
from shardwise.serve.draft_model import DraftModel
from shardwise.serve.drafts import Drafter, NgramDrafter, NgramIndex
from shardwise.serve.programs import Programs, Row
from shardwise.serve.request import LENGTH, STOP, Generation, Sampling
from tests.unit.serve.engines import MODEL, Greedy, Output, generate, programs, running

DRAFTED = 3
GREEDY = Sampling(temperature=0)
NOISY = Sampling(temperature=1.2, top_k=40, top_p=0.95)
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
            text = next(text for text in self.texts if list(text[: len(tokens)]) == tokens)
            drafted = list(text[len(tokens) : len(tokens) + n])
            self.n_proposed += 1
            if self.wrong and self.n_proposed % 2 and len(drafted) > 1:
                drafted[1] = (drafted[1] + 1) % MODEL.vocab
            drafts.append(drafted)
        return drafts


@pytest.fixture(scope="module")
def compiled() -> Programs:
    return programs(max_drafted=DRAFTED)


@pytest.fixture(scope="module")
def plain() -> Greedy:
    return Greedy()


@pytest.fixture(scope="module")
def other_model() -> Programs:
    return programs(DraftModel, seed=2, n_drafted=DRAFTED)


@pytest.fixture(scope="module")
def same_model() -> Programs:
    return programs(DraftModel, n_drafted=DRAFTED)


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


@pytest.mark.parametrize("limits", [{}, {"max_sequences": 1}, {"max_tokens": 5}, SCARCE], ids=str)
@pytest.mark.parametrize("kind", ["ngram", "same_model", "other_model", "right", "wrong"])
def test_greedy_outputs_are_those_of_a_plain_loop(
    compiled: Programs,
    plain: Greedy,
    kind: str,
    limits: dict[str, object],
    request: pytest.FixtureRequest,
) -> None:
    asked = requests()
    expected = [plain.continuation(prompt, 14) for prompt in prompts()]
    texts = [(*prompt, *text) for prompt, text in zip(prompts(), expected, strict=True)]
    drafter: Drafter
    if kind == "ngram":
        drafter = NgramDrafter()
    elif kind in ("right", "wrong"):
        drafter = Oracle(texts, kind == "wrong")
    else:
        drafter = request.getfixturevalue(kind)
    outputs, counts = drafted_outputs(compiled, drafter, asked, **limits)
    assert [output.ids for output in outputs] == expected
    assert {output.finish for output in outputs} == {LENGTH}
    drafted, accepted = counts["drafted_tokens"], counts["accepted_tokens"]
    if kind in ("right", "same_model"):
        assert accepted == drafted > 0
    else:
        assert 0 < accepted < drafted or kind == "other_model"


def test_every_second_draft_is_wrong_in_its_middle(compiled: Programs, plain: Greedy) -> None:
    asked = requests()[1]
    text = [*asked.prompt, *plain.continuation(asked.prompt, 14)]
    drafter = Oracle([text], wrong=True)
    (output,), counts = drafted_outputs(compiled, drafter, [asked])
    assert output.ids == text[len(asked.prompt) :]
    # The prompt gives 1 token; then drafts of 3 give 2, 4, 2, 4, and the last of 1 gives the rest.
    print(counts)
