"""What a config.json says about arithmetic, family by family, from its keys alone."""

from __future__ import annotations

import math

import pytest

from shardwise.errors import BadFile, BadShape
from shardwise.models import (
    ClampedGlu,
    Norm,
    Rope,
    RopeScaling,
    Routing,
    Temperature,
    count,
    from_dict,
    load,
    stack,
)
from shardwise.models.presets import presets
from shardwise.models.stack import unrolled

TINY = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 4,
    "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 256,
}  # fmt: skip
DEEPSEEK = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "kv_lora_rank": 32, "q_lora_rank": None, "moe_intermediate_size": 32,
}  # fmt: skip


def tiny(kind, **keys):
    return from_dict(TINY | {"model_type": kind} | keys, name="tiny")


def rotary(config, group=0):
    return config.groups[group].layer.attention.rotary


def test_a_bare_llama():
    config = tiny("llama")
    attention = config.main_attention
    assert config.norm == Norm(kind="rms", eps=1e-6)
    assert attention.rotary == Rope(theta=10_000.0)
    assert (attention.score_scale, attention.softcap, config.logit_softcap) == (0.25, None, None)
    assert config.main_ffn.activation == "silu"
    assert not config.scaled_embeddings


@pytest.mark.parametrize(
    ("kind", "eps", "theta"),
    [
        ("llama", 1e-6, 1e4), ("mistral", 1e-6, 1e4), ("mixtral", 1e-5, 1e6),
        ("qwen2", 1e-6, 1e4), ("qwen3", 1e-6, 1e4), ("qwen2_moe", 1e-6, 1e4),
        ("qwen3_moe", 1e-6, 1e4), ("olmo2", 1e-5, 1e4), ("phi3", 1e-5, 1e4),
        ("gemma", 1e-6, 1e4), ("gemma2", 1e-6, 1e4), ("olmo3", 1e-5, 5e5), ("olmoe", 1e-5, 1e4),
        ("granite", 1e-6, 1e4), ("granitemoe", 1e-6, 1e4), ("smollm3", 1e-6, 2e6),
        ("glm", 1.5625e-7, 1e4), ("glm4", 1.5625e-7, 1e4), ("glm4_moe", 1e-5, 1e4),
        ("arcee", 1e-5, 1e4), ("exaone4", 1e-5, 1e4), ("seed_oss", 1e-6, 1e4),
        ("ernie4_5", 1e-5, 5e5),
    ],
)  # fmt: skip
def test_defaults_and_stated_values_of_each_family(kind, eps, theta):
    bare, stated = tiny(kind), tiny(kind, rms_norm_eps=1e-3, rope_theta=77)
    assert (bare.norm.eps, rotary(bare).theta) == (eps, theta)
    assert (stated.norm.eps, rotary(stated).theta) == (1e-3, 77.0)


def test_scaling_of_llama_3():
    assert rotary(load("llama3.1-8b")) == Rope(
        theta=500_000.0,
        scaling=RopeScaling(kind="llama3", factor=8.0, original=8192, low_freq=1.0, high_freq=4.0),
    )


def test_newer_files_keep_all_of_rope_in_one_object():
    old = tiny("llama", rope_theta=9.0, rope_scaling={"type": "linear", "factor": 2})
    new = tiny("llama", rope_parameters={"rope_type": "linear", "factor": 2, "rope_theta": 9.0})
    assert rotary(old) == rotary(new)
    assert rotary(new) == Rope(
        theta=9.0, scaling=RopeScaling(kind="linear", factor=2.0, original=256)
    )
    assert old.unused_keys == new.unused_keys == ()


def test_dynamic_scaling_starts_at_the_stated_positions():
    told = {"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 64}
    assert rotary(tiny("llama", rope_scaling=told)).scaling.original == 256


def test_yarn_raises_cosines_and_sines():
    told = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert rotary(tiny("qwen3", rope_scaling=told)).scaling == RopeScaling(
        kind="yarn", factor=4.0, original=64, attention_factor=0.1 * math.log(4) + 1
    )
    stated = rotary(tiny("qwen3", rope_scaling=told | {"attention_factor": 1.5}))
    assert stated.scaling.attention_factor == 1.5


def test_long_rope_of_phi3():
    told = {"type": "su", "short_factor": [1.0, 1.5], "long_factor": [2, 3.5]}
    config = tiny(
        "phi3", rope_scaling=told, original_max_position_embeddings=64, partial_rotary_factor=0.25
    )
    gain = math.sqrt(1 + math.log(4) / math.log(64))
    assert rotary(config) == Rope(
        dims=4,
        scaling=RopeScaling(
            kind="longrope",
            factor=4.0,
            original=64,
            attention_factor=gain,
            short=(1.0, 1.5),
            long=(2.0, 3.5),
        ),
    )


def test_gemma_scales_embeddings_and_stores_norms_from_one():
    for name in ("gemma-2b", "gemma2-2b", "gemma3-4b"):
        config = load(name)
        assert config.scaled_embeddings
        assert config.norm == Norm(eps=1e-6, plus_one=True)
        assert config.main_ffn.activation == "gelu_tanh"
    assert tiny("gemma", hidden_act="gelu").main_ffn.activation == "gelu_tanh"


def test_gemma_2_caps_and_scales_scores():
    config = load("gemma2-27b")
    assert (config.main_attention.softcap, config.logit_softcap) == (50.0, 30.0)
    assert config.main_attention.score_scale == 144**-0.5
    assert load("gemma2-2b").main_attention.scale is None  # 256, the width of a head
    bare = tiny("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (bare.main_attention.softcap, bare.logit_softcap) == (None, None)


def test_gemma_3_turns_local_layers_by_another_base():
    config = load("gemma3-4b")
    linear = RopeScaling(kind="linear", factor=8.0, original=131_072)
    assert rotary(config) == Rope(theta=1e4)
    assert rotary(config, 1) == Rope(theta=1e6, scaling=linear)
    assert load("gemma3-27b").main_attention.score_scale == 168**-0.5
    parts = {
        "sliding_attention": {"rope_theta": 5.0},
        "full_attention": {"rope_theta": 6.0, "rope_type": "linear", "factor": 2.0},
    }
    newer = tiny("gemma3_text", num_hidden_layers=6, rope_parameters=parts)
    assert (rotary(newer).theta, rotary(newer, 1).theta) == (5.0, 6.0)
    assert rotary(newer, 1).scaling == RopeScaling(kind="linear", factor=2.0, original=256)
    assert newer.unused_keys == ()


def test_deepseek_v3():
    config = load("deepseek-v3")
    attention, gain = config.main_attention, 0.1 * math.log(40) + 1
    assert attention.score_scale == pytest.approx(192**-0.5 * gain**2, rel=1e-15)
    assert attention.rotary.interleaved
    assert attention.rotary.scaling.attention_factor == 1.0  # mscale over mscale_all_dim
    assert attention.mla.norm_eps == 1e-6
    assert config.moe.routing == Routing(
        score="sigmoid", correction=True, n_groups=8, top_groups=4, group_best=2, scale=2.5
    )


def test_deepseek_v2_chooses_greedily_or_within_groups():
    assert load("deepseek-v2-lite").moe.routing == Routing(normalized=False, aux_loss=0.001)
    grouped = load("deepseek-v2").moe.routing
    assert (grouped.n_groups, grouped.top_groups, grouped.scale) == (8, 3, 16.0)
    assert not tiny(
        "deepseek_v3", **DEEPSEEK, rope_interleave=False
    ).main_attention.rotary.interleaved
    assert tiny("deepseek_v3", **DEEPSEEK, n_group=None, topk_group=None).moe.routing.n_groups == 1


def test_routing_of_softmax_families():
    assert load("mixtral-8x7b").moe.routing == Routing(aux_loss=0.02)
    assert load("qwen3-30b-a3b").moe.routing == Routing(aux_loss=0.001)
    assert load("qwen1.5-moe-a2.7b").moe.routing == Routing(normalized=False, aux_loss=0.001)


def test_gpt_oss():
    config = load("gpt-oss-20b")
    yarn = RopeScaling(
        kind="yarn",
        factor=32.0,
        original=4096,
        truncate=False,
        attention_factor=0.1 * math.log(32) + 1,
    )
    assert rotary(config) == rotary(config, 1) == Rope(theta=150_000.0, scaling=yarn)
    assert config.moe.clamp == ClampedGlu(alpha=1.702, limit=7.0)
    assert config.moe.routing == Routing(aux_loss=0.9)
    assert rotary(tiny("gpt_oss")) == Rope(theta=150_000.0, scaling=yarn)


def test_llama_4_norms_turned_queries_and_tempers_the_others():
    config = load("llama4-scout")
    local, whole = (g.layer.attention for g in config.groups)
    assert (local.rope, local.qk_unit, local.temperature) == (True, True, None)
    assert local.rotary.interleaved
    assert local.rotary.scaling.factor == 16.0
    assert (whole.rope, whole.qk_unit) == (False, False)
    assert whole.temperature == Temperature(floor=8192.0, scale=0.1)
    assert config.moe.routing == Routing(
        score="sigmoid", normalized=False, on_input=True, aux_loss=0.001
    )


def test_models_with_layer_norms():
    for name in ("gpt2", "falcon-7b", "pythia-1b", "palm-8b", "gpt3-175b"):
        assert load(name).norm.kind == "layer"
    assert load("pythia-1b").main_attention.rotary.dims == 64  # a quarter of 256
    assert load("gpt2").main_ffn.activation == "gelu_tanh"
    assert load("pythia-1b").main_ffn.activation == "gelu"
    assert load("gpt-neox-20b").main_ffn.activation == "gelu_tanh"
    assert load("gpt3-175b").main_ffn.activation == "gelu_tanh"  # described in keys of GPT-2
    unscaled = presets()["gpt2"].read() | {"scale_attn_weights": False}
    assert from_dict(unscaled, name="mine").main_attention.score_scale == 1.0


def test_falcon_with_slopes_instead_of_turns():
    keys = TINY.keys() - {"num_key_value_heads", "intermediate_size"}
    keys = {key: TINY[key] for key in keys} | {"model_type": "falcon", "alibi": True}
    attention = from_dict(keys, name="tiny").main_attention
    assert (attention.rope, attention.alibi) == (False, True)


def test_granite_has_factors():
    told = {
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.0078125,
        "logits_scaling": 16.0,
    }  # fmt: skip
    for kind in ("granite", "granitemoe", "granitemoeshared"):
        config = tiny(kind, **told)
        assert (config.embedding_scale, config.residual_scale) == (12.0, 0.22)
        assert (config.main_attention.score_scale, config.logit_scale) == (0.0078125, 1 / 16)
        bare = tiny(kind)
        assert (bare.embedding_scale, bare.residual_scale, bare.logit_scale) == (1.0, 1.0, 1.0)
        assert bare.main_attention.score_scale == 1.0


def test_logits_are_not_divided_by_0():
    with pytest.raises(BadFile, match="logits_scaling is 0, and logits are divided by it"):
        tiny("granite", logits_scaling=0)


def test_layers_without_positions():
    def ropes(config):
        return [config.groups[kind].layer.attention.rope for kind in unrolled(stack(config))]

    assert ropes(tiny("smollm3")) == [True, True, True, False]
    assert ropes(tiny("smollm3", no_rope_layers=[0, 1, 1, 0])) == [False, True, True, False]
    assert ropes(tiny("cohere2")) == [True, True, True, False]
    assert ropes(tiny("exaone4", layer_types=["sliding_attention", "full_attention"] * 2)) == [
        True, False, True, False,
    ]  # fmt: skip
    assert ropes(tiny("exaone4", sliding_window=None)) == [True] * 4


def test_olmo_has_norms_without_parameters_and_clips():
    config = tiny("olmo", clip_qkv=8.0)
    assert config.norm == Norm(kind="layer", eps=1e-5)
    assert count.parameters(config).norm == 0
    assert config.main_attention.clip == 8.0
    assert tiny("olmo", clip_qkv=None).main_attention.clip is None


def test_olmo_3_scales_positions_of_global_layers_alone():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = tiny("olmo3", rope_scaling=yarn)
    assert rotary(config) == Rope(theta=5e5)
    assert rotary(config, 1).scaling.kind == "yarn"
    assert [group.count for group in config.groups] == [3, 1]


def test_partial_rotary_positions():
    stated = {"phi": 8, "stablelm": 4, "nemotron": 8, "glm": 8, "glm4": 8, "glm4_moe": 8}
    for kind, dims in stated.items():
        config = tiny(kind, head_dim=16) if kind.startswith("glm") else tiny(kind)
        assert rotary(config).dims == dims
        assert rotary(config).interleaved == (kind in ("glm", "glm4"))


def test_cohere_scales_logits_and_normalizes_each_head():
    config = tiny("cohere", use_qk_norm=True)
    assert (config.logit_scale, config.norm) == (0.0625, Norm(kind="layer", eps=1e-5))
    assert config.main_attention.qk_norm == "each"
    assert rotary(config) == Rope(theta=5e5, interleaved=True)
    assert rotary(tiny("cohere2")) == Rope(theta=1e4, interleaved=True)


def test_nemotron_squares_relu_and_stores_norms_from_one():
    config = tiny("nemotron")
    assert config.norm == Norm(kind="layer", eps=1e-5, plus_one=True)
    assert (config.main_ffn.activation, config.main_ffn.gated) == ("relu2", False)
    assert tiny("arcee").main_ffn == config.main_ffn


@pytest.mark.parametrize("kind", ["phi", "stablelm"])
def test_norms_of_heads_with_biases_are_refused(kind):
    with pytest.raises(BadFile, match=r"qk_layernorm true is not supported: .*[nN]orms of"):
        tiny(kind, qk_layernorm=True)


def test_an_unknown_activation_is_kept():
    assert tiny("llama", hidden_act="mish").main_ffn.activation == "mish"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"rms_norm_eps": "small"}, "rms_norm_eps 'small' is not a number."),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps -1e-06 is below 0."),
        ({"rope_theta": float("nan")}, "rope_theta nan is not a number."),
        ({"rope_theta": 10**40}, "rope_theta 1.000e+40 is above 2,147,483,647."),
        ({"rope_theta": 10**400}, "rope_theta beyond 1e300 is above"),
        ({"rope_scaling": 3}, "rope_scaling 3 is not an object."),
        ({"rope_scaling": {"type": "linear", "factor": []}}, "rope_scaling.factor [] is not a"),
        ({"hidden_act": 3}, "hidden_act 3 is not text."),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [0]}},
            "rope_scaling.short_factor [0] is not a list of positive numbers.",
        ),
    ],
)
def test_numbers_that_are_none_are_told(keys, problem):
    with pytest.raises(BadFile) as caught:
        tiny("llama", **keys)
    assert problem in str(caught.value)


def test_kinds_that_no_norm_and_no_router_has():
    with pytest.raises(BadShape, match='norm "batch" is not one of rms, layer'):
        Norm(kind="batch")
    with pytest.raises(BadShape, match='score "hash" is not one of softmax, sigmoid'):
        Routing(score="hash")
