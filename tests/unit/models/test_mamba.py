"""Mamba-2 blocks: what a layer may be, and its counts against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.errors import BadShape, BadUnit
from shardwise.models import Attention, Layer, Mamba, Mlp, ModelConfig
from shardwise.models.activations import activation_bytes, layer_activations
from shardwise.models.count import flops, kv_bytes_per_token, kv_cache_bytes, parameters, scan_flops
from shardwise.models.overrides import apply
from shardwise.models.weights import layer_weights
from tests.hybrid import LATENT, MAMBA, hybrid, paired

ATTENTION = Attention(n_heads=8, n_kv_heads=4, d_head=32)
INNER, STATE, GROUPS, HEADS, D = 16 * 32, 64, 4, 16, 256
SCANNED = INNER + 2 * GROUPS * STATE


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Layer(), "a layer without attention, Mamba block and feed-forward is empty."),
        (lambda: Layer(attention=ATTENTION, mamba=MAMBA), "attention or a Mamba block, not both."),
        (lambda: Layer(ffn=Mlp(d_ff=8), parallel=True), "a layer of one block is not parallel"),
        (lambda: Layer(mamba=MAMBA, norms="shared"), "shares no norm."),
        (lambda: Mamba(n_heads=8, d_head=0, d_state=1), "d_head 0 of mamba is below 1."),
        (
            lambda: Mamba(n_heads=8, d_head=1, d_state=1, n_groups=3),
            "n_groups 3 does not divide n_heads 8",
        ),
    ],
)
def test_what_no_layer_can_be(make, said):
    with pytest.raises(BadShape, match=said.replace(".", r"\.")):
        make()


def test_parameters_of_a_block_by_hand():
    layer = Layer(mamba=MAMBA)
    found = {w.name: w.size for w in layer_weights(hybrid(), layer)}
    assert found == {
        "w_in": D * (2 * INNER + 2 * GROUPS * STATE + HEADS),
        "conv": SCANNED * 4,
        "b_conv": SCANNED,
        "a_log": HEADS,
        "skip": HEADS,
        "b_dt": HEADS,
        "scan_norm": INNER,
        "w_out": INNER * D,
        "mamba_norm": D,
    }


def test_layers_of_one_block_have_one_norm():
    config = hybrid()
    norms = [[w.name for w in layer_weights(config, g.layer)][-1] for g in config.groups]
    assert norms == ["mamba_norm", "ffn_norm", "attention_norm"]
    both = [w.name for w in layer_weights(paired(), paired().main_layer) if w.part == "norm"]
    assert both == ["scan_norm", "mamba_norm", "ffn_norm"]


def test_parts_of_a_hybrid_add_up():
    counts = parameters(hybrid())
    assert counts.mamba == 4 * (D * (3 * INNER + 512 - INNER + HEADS) + 5 * SCANNED + 3 * HEADS
                                + INNER * D)  # fmt: skip
    assert counts.attention == 2 * D * 32 * (2 * 8 + 2 * 4)
    assert counts.moe == 4 * (D * 8 + 8 * 2 * D * 256 + 2 * D * 512)
    assert counts.norm == 10 * D + 4 * INNER + D
    idle = 4 * 6 * 2 * D * 256
    assert counts.active == counts.total - idle


def test_experts_on_a_latent():
    counts = parameters(hybrid(LATENT))
    assert counts.moe == 4 * (D * 8 + 8 * 2 * 64 * 256 + 2 * D * 64)
    assert counts.active == counts.total - 4 * 6 * 2 * 64 * 256
    used = D * 8 + 2 * 2 * 64 * 256 + 2 * D * 64
    assert flops(hybrid(LATENT), 256).moe == 4 * 2 * used


def test_flops_by_hand():
    found = flops(hybrid(), 1024)
    assert found.mamba == 4 * 2 * (D * (INNER + SCANNED + HEADS) + INNER * D)
    # One chunk of 128: half a square for each group and head; states are written and read.
    chunk = 128 * 128 * (GROUPS * STATE + INNER) + 2 * 2 * 128 * INNER * STATE
    assert found.scan == 4 * chunk / 128
    assert found.scores == 2 * 2 * 8 * 2 * 32 * 512
    assert flops(hybrid(), 64).scan < found.scan  # a sequence shorter than a chunk


def test_the_scan_costs_the_same_at_any_length():
    lengths = np.array([64, 128, 1024, 2**20])
    many = scan_flops(MAMBA, lengths)
    assert list(many) == [scan_flops(MAMBA, int(n)) for n in lengths]
    assert many[1] == many[2] == many[3] > many[0]
    both = flops(hybrid(), lengths).forward
    assert list(both) == [flops(hybrid(), int(n)).forward for n in lengths]


def test_the_state_is_held_once_per_sequence():
    state = INNER * STATE + SCANNED * 3
    token = 2 * 2 * 4 * 32
    assert kv_bytes_per_token(hybrid(), 1) == token
    assert kv_cache_bytes(hybrid(), 1000, 1) == 1000 * token + 4 * state
    assert kv_cache_bytes(paired(), 1000, 1) == kv_cache_bytes(paired(), 1, 1) == 4 * state


def test_what_a_block_keeps():
    kept = {r.name: r.size for r in layer_activations(hybrid(), Layer(mamba=MAMBA))}
    projected = INNER + SCANNED + HEADS
    assert kept == {
        "layer_input": D,
        "mamba_input": D,
        "projected": projected,
        "scanned": INNER,
        "scan_normed": INNER,
    }
    dots = [r.name for r in layer_activations(hybrid(), Layer(mamba=MAMBA), "dots")]
    assert dots == ["layer_input", "projected", "scanned"]
    both = [r.name for r in layer_activations(paired(), paired().main_layer, "dots")]
    assert both == ["layer_input", "projected", "scanned", "mamba_output", "gate", "up"]
    assert activation_bytes(hybrid(), 7, "full", 1) == 7 * 10 * D


def test_experts_on_a_latent_keep_narrow_copies():
    rows = {r.name: r.shape for r in layer_activations(hybrid(LATENT), Layer(ffn=LATENT))}
    assert rows["expert_input"] == (2, 64)
    assert rows["latent"] == rows["latent_output"] == (64,)
    assert "middle" not in rows


def test_the_model_in_its_common_numbers():
    config = hybrid()
    assert (config.n_layers, config.n_heads, config.n_kv_heads, config.d_ff) == (10, 8, 4, 256)
    assert config.n_experts == 8
    none = paired()
    assert (none.n_heads, none.d_head, none.d_ff) == (0, 0, 512)
    assert isinstance(none, ModelConfig)


def test_changes_reach_the_blocks_that_have_the_field():
    changed = apply(hybrid(), ["n_heads=4", "d_ff=128"])
    assert (changed.n_heads, changed.d_ff, changed.mambas) == (4, 128, hybrid().mambas)
    with pytest.raises(BadUnit, match="n_heads: hybrid has no attention"):
        apply(paired(), ["n_heads=4"])
