"""Which chip has which tokens of a sequence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shardwise.models import ModelConfig
from shardwise.runtime.kernels.attention_mask import attention_mask
from shardwise.runtime.layout.context_order import ContextOrder, context_order
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh

MODEL = ModelConfig.dense(n_layers=2, d_model=64, d_ff=128, n_heads=8, n_kv_heads=4, vocab=256)


def test_early_and_late_chunks_in_pairs() -> None:
    order = ContextOrder(n=2, paired=True)
    assert order.positions(0, 4).tolist() == [0, 1, 6, 7]
    assert order.token_order(8).tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert ContextOrder(n=2).token_order(8).tolist() == [*range(8)]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_every_chip_has_the_same_scores_to_compute(n: int) -> None:
    """A plan counts the mean of all chips on each."""
    attention, seq = MODEL.attentions[0][0], 64
    order = ContextOrder(n=n, paired=True)
    rows = [order.positions(i, seq // n) for i in range(n)]
    assert sorted(np.concatenate(rows).tolist()) == [*range(seq)]
    work = {int(attention_mask(attention, r[:, None], np.arange(seq)).sum()) for r in rows}
    assert len(work) == 1 or max(work) - min(work) == 0
    assert sum(attention_mask(attention, r[:, None], np.arange(seq)).sum() for r in rows) == (
        seq * (seq + 1) // 2
    )


def layout(kind: str) -> Layout:
    return Layout(mesh=Mesh(context=4), context_kind=kind)


def test_tokens_are_paired_where_a_causal_mask_asks_for_it() -> None:
    assert context_order(MODEL, layout("gather"), 4, 64).paired
    assert context_order(MODEL, layout("ring"), 4, 64).paired
    assert not context_order(MODEL, layout("ulysses"), 4, 64).paired
    assert not context_order(MODEL, layout("gather"), 1, 64).paired
    assert not context_order(MODEL, layout("gather"), 4, 60).paired  # 8 chunks do not divide it


def test_a_window_is_as_wide_on_every_chip() -> None:
    group = MODEL.groups[0]
    attention = dataclasses.replace(MODEL.attentions[0][0], window=16)
    layer = dataclasses.replace(group.layer, attention=attention)
    narrow = dataclasses.replace(MODEL, groups=(dataclasses.replace(group, layer=layer),))
    assert not context_order(narrow, layout("gather"), 4, 64).paired
    assert context_order(narrow, layout("gather"), 4, 16).paired
