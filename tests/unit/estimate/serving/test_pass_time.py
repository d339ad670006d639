"""Passes of an engine against the book's formulas, and what must hold of any of them."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.estimate.serving.load import Load, decode_load, prefill_load
from shardwise.estimate.serving.overhead import IDEAL, EngineOverhead
from shardwise.estimate.serving.pass_time import collectives
from shardwise.formulas import stationary
from shardwise.formulas.inference import decode_step, prefill_s
from shardwise.models import load
from shardwise.models.count import kv_bytes_per_token, parameters
from shardwise.strategy.serving_layout import ServeLayouts
from shardwise.workload import Serve
from tests.unit.estimate.serving.engines import BUSY, REACHED, engine

INT8 = Serve(context=8192, weights="int8", kv="int8", compute="bf16")


@pytest.mark.parametrize(
    ("hardware", "tensor", "dtype"), [("v5e:4x4", 16, "bf16"), ("v5e:2x4", 8, "int8")]
)
@pytest.mark.parametrize("batch", [1, 8, 32, 43, 240])
def test_decoding_at_peak_is_the_books_formula(
    hardware: str, tensor: int, dtype: str, batch: int
) -> None:
    job = Serve(context=8192, weights=dtype, kv=dtype, compute="bf16")
    e = engine("llama3-70b", hardware, {"tensor": tensor}, job, kv="batch")
    chip, config = e.rates.chip, e.config
    # A lookup is no product; the unembedding stays in 16 bits.
    held = parameters(config).matmul - config.d_model * config.vocab
    each = 2 if dtype == "bf16" else 1
    book = decode_step(
        batch,
        8192 * kv_bytes_per_token(config, dtype),
        held * each + 2 * config.d_model * config.vocab,
        n_chips=tensor,
        hbm_bytes_per_s=chip.need("hbm_bytes_per_s"),
        params=parameters(config).matmul,
        flops_per_s=chip.peak("bf16"),
    )
    found = e.decode(batch, 8192)
    assert found.decode_attention == pytest.approx(book.kv_s, rel=1e-9)
    # Eight key and value heads on sixteen chips: their projections are there twice.
    assert book.step_s <= found.local_s <= book.step_s * 1.02


def test_prefill_at_peak_is_the_books_formula() -> None:
    e = engine("llama3-70b", "v5e:4x4", {"tensor": 16}, kv="batch")
    found = e.prefill(1, 8192)
    dense = parameters(e.config).matmul - e.config.d_model * e.config.vocab
    book = prefill_s(dense, 8192, n_chips=16, flops_per_s=e.rates.chip.peak("bf16"))
    assert book <= found.matmuls <= book * 1.02
    # 0.91 s at 40 % MFU, book §8: it counts all parameters and no attention.
    whole = prefill_s(parameters(e.config).total, 8192, n_chips=16, flops_per_s=197e12, mfu=0.4)
    assert whole == pytest.approx(0.91, abs=0.01)


def test_two_dims_send_what_the_book_says() -> None:
    """2BD/X gathered, 4BF/YZ summed, 2BD/X scattered; 11.3 BD / (sqrt(N) W) in all. Book §7."""
    best = stationary.best_2d(128)
    mesh = {"fsdp": int(best.x), "tensor": int(best.yz)}
    e = engine("gpt3-175b", "v4:4x4x8", mesh, Serve(context=2048), weights="2d", kv="batch")
    batch, d_model = 64, e.config.d_model
    n_bytes = {}
    for transfer in e.program.transfers:
        if transfer.name.startswith("mlp."):
            sizes = {**transfer.sizes, "B": batch}
            kind = transfer.move.kind
            assert kind not in n_bytes
            n_bytes[kind] = transfer.move.joined_bytes(sizes, e.layout.sizes, 2)
    assert n_bytes == {
        "all_gather": 2 * batch * d_model / best.x,
        "all_reduce": 2 * batch * 4 * d_model / best.yz,
        "reduce_scatter": 2 * batch * d_model / best.x,
    }
    # An AllReduce counts twice; gather and scatter have two torus axes, Y and Z.
    over_one_axis = 2 * n_bytes["all_reduce"]
    over_two_axes = n_bytes["all_gather"] + n_bytes["reduce_scatter"]
    moved_bytes = over_one_axis + over_two_axes / 2
    assert moved_bytes == pytest.approx(best.coefficient * batch * d_model / 128**0.5)


def test_gathered_weights_cost_more_than_they_save() -> None:
    """FSDP while decoding sends every weight for every token. Book §7."""
    stays = engine("llama3-70b", "v5e:4x4", {"tensor": 16}, kv="batch").decode(32, 8192)
    moves = engine("llama3-70b", "v5e:4x4", {"tensor": 4, "fsdp": 4}, weights="gathered")
    assert moves.decode(32, 8192).comm_s > 5 * stays.comm_s


def test_copied_heads_read_more_than_split_sequences() -> None:
    copied = engine("llama3-70b", "v5e:4x4", {"tensor": 16}).decode(32, 8192)
    split = engine("llama3-70b", "v5e:4x4", {"tensor": 16}, kv="sequence").decode(32, 8192)
    assert copied.decode_attention == pytest.approx(
        2 * split.decode_attention
    )  # 8 heads on 16 chips
    assert split.traffic["tensor"] > copied.traffic["tensor"]


def test_experts_that_nobody_chooses_are_not_read() -> None:
    e = engine("deepseek-v3", "h200:8", {"expert": 8}, Serve(context=1024, weights="fp8"))
    one, many = e.decode(1, 1024).matmuls, e.decode(4096, 1024).matmuls
    assert many > 5 * one


@pytest.mark.parametrize(
    ("hardware", "kinds"),
    [("h200:8", ("all_to_all", "all_to_all")), ("v5e:2x4", ("all_gather", "reduce_scatter"))],
)
def test_tpus_gather_the_tokens_of_their_experts(hardware: str, kinds: tuple[str, str]) -> None:
    e = engine("deepseek-v3", hardware, {"expert": 4, "tensor": 2}, Serve(context=1024))
    items = {item.name: item for item in collectives(e, decode_load(64, 1024))}
    dispatch, combine = items["moe.dispatch"], items["moe.combine"]
    assert (dispatch.kind, combine.kind) == kinds
    tokens_bytes = 64 * 7168 * 2
    if kinds[0] == "all_gather":
        assert dispatch.joined_bytes == combine.joined_bytes == tokens_bytes
    else:  # a token is on 3 to 4 of the chips, because it has 8 experts
        assert 3 * tokens_bytes < dispatch.joined_bytes < 4 * tokens_bytes


def test_collectives_of_gpus_pay_for_their_protocol() -> None:
    """But for the start, an AllReduce of little takes four times as long as its bytes at peak."""

    def all_reduce_s(software: EngineOverhead, batch: int) -> float:
        served = engine("llama3-70b", "h100:8", {"tensor": 8}, software=software)
        items = collectives(served, decode_load(batch, 1024))
        return next(float(item.occurrence_s) for item in items if item.name == "attn.out")

    quarter = pytest.approx(4 * all_reduce_s(IDEAL, 1))
    assert all_reduce_s(BUSY, 1) == quarter
    assert all_reduce_s(BUSY, 4096) < 1.2 * all_reduce_s(IDEAL, 4096)


def test_arrays_give_the_numbers() -> None:
    job = Serve(context=4096, weights="fp8", kv="fp8", compute="fp8")
    one = engine("deepseek-v3", "h200:8", {"expert": 4, "tensor": 2}, job, shares=REACHED)
    sizes = {role: np.array([n, n]) for role, n in one.layout.sizes.items()}
    many = replace(one, layout=ServeLayouts(sizes=sizes))
    loads = [decode_load(np.array([8.0, 64.0]), 3000.0), prefill_load(np.array([1.0, 4.0]), 2048)]
    for load_ in loads:
        found = many.pass_time(load_).step_s
        for i in range(2):
            numbers = {
                field.name: value[i] if isinstance(value, np.ndarray) else value
                for field in fields(Load)
                if (value := getattr(load_, field.name)) is not None
            }
            assert found[i] == pytest.approx(one.pass_time(Load(**numbers)).step_s, rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 512),
    context=st.integers(1, 32768),
    name=st.sampled_from(["llama3-8b", "gemma3-27b", "gpt-oss-120b", "deepseek-v3"]),
)
def test_more_of_anything_is_never_slower(batch: int, context: int, name: str) -> None:
    e = engine(name, "h100:8", {"tensor": 4}, shares=REACHED, software=BUSY)
    step = e.decode(batch, context).step_s
    for word, figure in (("hbm_bandwidth", "hbm.bandwidth"), ("node", "node.egress")):
        twice = f"h100:8,{word}={2 * e.rates.chip.need(figure)}B/s"
        faster = engine(name, twice, {"tensor": 4}, shares=REACHED, software=BUSY)
        assert faster.decode(batch, context).step_s <= step * (1 + 1e-12)
    assert e.decode(batch + 1, context).step_s >= step * (1 - 1e-12)
    assert e.decode(batch, context + 1).step_s >= step * (1 - 1e-12)


def test_windows_bound_what_is_read() -> None:
    config = load("gpt-oss-120b")
    assert any(a.window for a, _ in config.attentions)
    e = engine("gpt-oss-120b", "h100:8", {"tensor": 8})
    grown = e.decode(8, 65536).decode_attention / e.decode(8, 32768).decode_attention
    assert 1.9 < grown < 2.0


def test_known_prefixes_save_their_share() -> None:
    e = engine("llama3-8b", "h100:1", {})
    whole, half = e.prefill(1, 8192), e.prefill(1, 8192, 4096)
    assert half.matmuls == pytest.approx(whole.matmuls / 2)
    assert half.prefill_attention == pytest.approx(whole.prefill_attention * 3 / 4, rel=1e-3)
