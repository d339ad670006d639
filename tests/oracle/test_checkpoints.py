"""Names of tensors and everything that is computed with them, against the transformers library.

A tiny random model of each family is saved to a file, read again under our names, and run in NumPy
by what our config says.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections import defaultdict

import numpy as np
import pytest

from shardwise.models import Moe, from_dict, load, names
from shardwise.models.families import checkpoint_formats
from shardwise.models.irrelevant import BESIDE
from shardwise.models.presets import presets
from shardwise.models.tensor_names import entries, weight_names
from shardwise.models.weights import layer_weights, outer_weights
from tests.oracle.forward import logits
from tests.oracle.test_parameters import NOT_ARCHITECTURE

pytestmark = pytest.mark.oracle

# NumPy here computes in float64, torch in float32 with norms and scores of a few units.
TOLERANCE = 1e-4

T = 24
SIZES = {
    "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
    "intermediate_size": 40, "vocab_size": 90, "max_position_embeddings": 64, "head_dim": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
NO_HEAD_DIM = {k: v for k, v in SIZES.items() if k != "head_dim"}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MSCALE = YARN | {"mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 4, "beta_slow": 1}
MLA = NO_HEAD_DIM | {
    "num_key_value_heads": 4, "kv_lora_rank": 20, "q_lora_rank": 24, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 10, "moe_intermediate_size": 16, "n_routed_experts": 8,
    "n_shared_experts": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2], "long_factor": [2.0, 3.0, 4.0],
}  # fmt: skip
GPT2 = {
    "n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 64, "vocab_size": 90,
}  # fmt: skip
NEOX = {k: v for k, v in NO_HEAD_DIM.items() if k != "num_key_value_heads"}
FALCON = {k: v for k, v in NEOX.items() if k != "intermediate_size"}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
FACTORS = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
    "logits_scaling": 2.5,
}  # fmt: skip

CASES = {
    "llama": ("llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "llama, no eps": ("llama", SIZES | {"rms_norm_eps": 0.1, "rope_theta": 50.0}),
    "llama3": ("llama", SIZES | {"rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "llama linear": ("llama", SIZES | {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "llama dynamic": (
        "llama",
        SIZES
        | {"max_position_embeddings": 16, "rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
    ),
    "mistral": ("mistral", SIZES | {"sliding_window": 5}),
    "mixtral": ("mixtral", SIZES | {"num_local_experts": 6}),
    "qwen2": ("qwen2", SIZES),
    "qwen2 windows": (
        "qwen2", SIZES | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    ),
    "qwen3 yarn": ("qwen3", SIZES | {"rope_scaling": YARN, "attention_bias": True}),
    "qwen2_moe": (
        "qwen2_moe",
        SIZES | MOE | {"shared_expert_intermediate_size": 24, "mlp_only_layers": [0]},
    ),
    "qwen3_moe": ("qwen3_moe", SIZES | MOE | {"norm_topk_prob": True, "decoder_sparse_step": 2}),
    "gemma": ("gemma", SIZES | {"hidden_act": "gelu"}),
    "gemma2": (
        "gemma2",
        SIZES
        | {"sliding_window": 5, "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0,
           "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "gemma3_text",
        SIZES
        | {"sliding_window": 5, "sliding_window_pattern": 3, "query_pre_attn_scalar": 9,
           "rope_theta": 900.0, "rope_local_base_freq": 30.0,
           "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    ),
    "olmo": ("olmo", SIZES | {"clip_qkv": 1.5}),
    "olmo2": ("olmo2", SIZES),
    "olmo3": ("olmo3", SIZES | {"sliding_window": 5, "rope_scaling": YARN}),
    "olmo3 newer": (
        "olmo3",
        SIZES
        | {"sliding_window": 5,
           "rope_parameters": {
               "full_attention": YARN | {"rope_theta": 700.0},
               "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
           }},
    ),
    "olmoe": (
        "olmoe", NO_HEAD_DIM | {"num_experts": 6, "num_experts_per_tok": 2, "clip_qkv": 2.0},
    ),
    "granite": ("granite", SIZES | FACTORS | {"attention_bias": True, "mlp_bias": True}),
    "granitemoe": ("granitemoe", SIZES | FACTORS | LOCAL_EXPERTS),
    "granitemoeshared": (
        "granitemoeshared", SIZES | FACTORS | LOCAL_EXPERTS | {"shared_intermediate_size": 24},
    ),
    "phi": ("phi", NO_HEAD_DIM | {"partial_rotary_factor": 0.5}),
    "stablelm": ("stablelm", NO_HEAD_DIM | {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm parallel": (
        "stablelm", NO_HEAD_DIM | {"use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "starcoder2": ("starcoder2", NO_HEAD_DIM | {"sliding_window": 5}),
    "cohere": ("cohere", NO_HEAD_DIM | {"logit_scale": 0.5, "attention_bias": True}),
    "cohere norms": ("cohere", NO_HEAD_DIM | {"use_qk_norm": True, "logit_scale": 0.5}),
    "cohere2": ("cohere2", NO_HEAD_DIM | {"sliding_window": 5, "logit_scale": 0.5}),
    "nemotron": (
        "nemotron",
        SIZES | {"partial_rotary_factor": 0.5, "attention_bias": True, "mlp_bias": True},
    ),
    "arcee": ("arcee", SIZES),
    "seed_oss": ("seed_oss", SIZES | {"attention_out_bias": True}),
    "ernie4_5": ("ernie4_5", SIZES | {"use_bias": True}),
    "glm": ("glm", SIZES),
    "glm4": ("glm4", SIZES),
    "glm4_moe": (
        "glm4_moe",
        SIZES
        | {"n_routed_experts": 8, "n_shared_experts": 2, "moe_intermediate_size": 16,
           "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "use_qk_norm": True,
           "routed_scaling_factor": 1.7, "attention_bias": True},
    ),
    "smollm3": ("smollm3", SIZES),
    "smollm3 windows": (
        "smollm3",
        SIZES | {"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0, 1, 0]},
    ),
    "exaone4": ("exaone4", SIZES | {"sliding_window": 5}),
    "exaone4 global": (
        "exaone4", SIZES | {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    ),
    "phi3": ("phi3", NO_HEAD_DIM | {"sliding_window": 5}),
    "phi3 long": (
        "phi3",
        NO_HEAD_DIM
        | {"rope_scaling": LONG, "original_max_position_embeddings": 16,
           "partial_rotary_factor": 0.5},
    ),
    "phi3 short": (
        "phi3",
        NO_HEAD_DIM
        | {"rope_scaling": LONG, "original_max_position_embeddings": 32,
           "partial_rotary_factor": 0.5},
    ),
    "gpt2": ("gpt2", GPT2),
    "gpt2 untied": (
        "gpt2", GPT2 | {"tie_word_embeddings": False, "n_inner": 50, "scale_attn_weights": False},
    ),
    "gpt_neox": ("gpt_neox", NEOX | {"rotary_pct": 0.5, "rotary_emb_base": 50}),
    "gpt_neox in turn": (
        "gpt_neox",
        NEOX | {"use_parallel_residual": False, "hidden_act": "gelu_fast", "rotary_pct": 0.5},
    ),
    "falcon": ("falcon", FALCON),
    "falcon 40b": (
        "falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon one norm": (
        "falcon",
        FALCON
        | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon rw": (
        "falcon",
        FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "gpt_oss": (
        "gpt_oss", SIZES | {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 5},
    ),
    "llama4": (
        "llama4_text",
        SIZES
        | {"num_local_experts": 6, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
           "intermediate_size_mlp": 56, "attention_chunk_size": 7, "floor_scale": 4,
           "rope_scaling": LLAMA3},
    ),
    "deepseek_v2": (
        "deepseek_v2",
        MLA | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
               "routed_scaling_factor": 1.7},
    ),
    "deepseek_v2 lite": ("deepseek_v2", MLA | {"q_lora_rank": None, "rope_scaling": MSCALE}),
    "deepseek_v3": (
        "deepseek_v3",
        MLA | {"n_group": 4, "topk_group": 2, "rope_scaling": MSCALE, "attention_bias": True,
               "rms_norm_eps": 0.01},
    ),
}  # fmt: skip


def scrambled(model, torch):
    """Every number random, and large enough that a mistake shows."""
    generator = torch.Generator().manual_seed(0)
    state = model.state_dict()
    for name in sorted(state):
        tensor = state[name]
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        wide = tensor.dim() > 1
        tensor.copy_(noise * (0.25 if wide else 0.5) + (0.0 if wide else 0.5))
    return model


def scrambled_model(name):
    """A case as transformers makes it, with random numbers."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    kind, keys = CASES[name]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(kind, **json.loads(json.dumps(keys)))
        # eager attention of Falcon adds the slopes twice; sdpa has neither caps nor sinks
        way = "sdpa" if keys.get("alibi") else "eager"
        model = AutoModelForCausalLM.from_config(config, attn_implementation=way).eval()
        return scrambled(model, torch)


def write_config(folder, name):
    """The config.json of a case, with its keys alone."""
    kind, keys = CASES[name]
    (folder / "config.json").write_text(json.dumps(keys | {"model_type": kind}), "utf-8")


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory):
    """(our config, tensors of the file, tokens, logits of transformers)."""
    torch = pytest.importorskip("torch")
    from safetensors.numpy import load_file

    folder = tmp_path_factory.mktemp("model")
    model = scrambled_model(request.param)
    tokens = torch.randint(3, 90, (1, T), generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = model(tokens, use_cache=False).logits[0].double().numpy()
        model.save_pretrained(folder)
    write_config(folder, request.param)
    tensors = load_file(folder / "model.safetensors")
    return load(folder), tensors, tokens[0].numpy(), expected


def test_every_number_of_a_file_is_used_once(saved):
    config, tensors, _, _ = saved
    used = defaultdict(list)
    for entry in entries(config):
        used[entry.tensor].append(entry.layout)
    assert set(used) == set(tensors)
    for name, parts in used.items():
        size = tensors[name].size
        numbered = np.arange(size).reshape(tensors[name].shape)
        assert all(part.file_shape == numbered.shape for part in parts)
        taken = np.concatenate([part.extract(numbered).ravel() for part in parts])
        assert sorted(taken) == list(range(size))


def test_logits_equal_transformers(saved):
    config, tensors, tokens, expected = saved
    outer, layers = {}, [defaultdict(list) for _ in range(config.n_layers)]
    for entry in entries(config):
        array = entry.layout.extract(tensors[entry.tensor].astype(np.float64))
        if entry.layer is None:
            outer[entry.weight] = array
        elif entry.expert is None:
            layers[entry.layer][entry.weight] = array
        else:
            layers[entry.layer][entry.weight].append(array)
    whole = [{name: np.asarray(array) for name, array in layer.items()} for layer in layers]
    got = logits(config, outer, whole, tokens)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_a_config_that_transformers_writes_is_read_whole(name):
    """With every default stated it gives the same model, and no key of it is unknown."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.set_verbosity_error()
    kind, keys = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stated = transformers.AutoConfig.for_model(kind, **json.loads(json.dumps(keys))).to_dict()
    ours, theirs = from_dict(keys | {"model_type": kind}, name=name), from_dict(stated, name=name)
    assert set(theirs.unused_keys) <= BESIDE
    assert dataclasses.replace(theirs, unused_keys=(), ignored_keys=()) == dataclasses.replace(
        ours, unused_keys=(), ignored_keys=()
    )


def test_every_family_has_a_case():
    kinds = {kind for kind, _ in CASES.values()}
    same = {"RefinedWeb": "falcon", "RefinedWebModel": "falcon", "gemma3": "gemma3_text"}
    same |= {"llama4": "llama4_text"}
    assert {same.get(kind, kind) for kind in checkpoint_formats()} == kinds


def test_shapes_are_those_of_our_weights(saved):
    config = saved[0]
    found = weight_names(config)
    assert {w.name: w.shape for w in outer_weights(config)} == {
        name: stored.shape for name, stored in found.outer.items()
    }
    for group, told in zip(config.groups, found.groups, strict=True):
        ours = {w.name: w.shape for w in layer_weights(config, group.layer)}
        ffn = group.layer.ffn
        E = (ffn.n_experts,) if isinstance(ffn, Moe) else ()
        made = {n: E + s.shape if s.per_expert else s.shape for n, s in told.items()}
        assert made.pop("router_correction", E) == E
        assert made == ours


@pytest.mark.parametrize("name", [n for n in names() if not n.startswith("palm")])
def test_presets_mean_the_same_as_transformers_reads_in_them(name):
    """What transformers writes of a config, every default stated, gives the same model."""
    transformers = pytest.importorskip("transformers")
    data = presets()[name].read()
    text = {k: v for k, v in data.get("text_config", data).items() if k not in NOT_ARCHITECTURE}
    stated = transformers.AutoConfig.for_model(**text).to_dict()
    ours, theirs = from_dict(text, name=name), from_dict(stated, name=name)
    kept = {"unused_keys": (), "ignored_keys": ()}
    assert dataclasses.replace(ours, **kept) == dataclasses.replace(theirs, **kept)
