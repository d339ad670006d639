"""From a config.json to a model: names, paths, and every way in which a file can be wrong."""

from __future__ import annotations

import json
import os

import pytest

from shardwise.errors import BadFile, BadInput, BadShape, IgnoredKey, UnknownName
from shardwise.models import count, from_dict, load
from shardwise.models.presets import presets

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


def write(folder, data, name="config.json"):
    folder.mkdir(exist_ok=True)
    text = data if isinstance(data, str) else json.dumps(data)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def said(problem, error=BadInput, **keys):
    with pytest.raises(error) as caught:
        from_dict({**LLAMA, **keys}, name="tiny")
    assert problem in str(caught.value)


def test_a_preset_by_any_of_its_names():
    for name in ("llama3-70b", "Llama-3-70B", "meta-llama/Meta-Llama-3-70B", "llama3-70b-instruct"):
        assert load(name) == load("llama3-70b")
    assert load("Qwen/Qwen2.5-7B").name == "qwen2.5-7b"
    assert load("turing-530b").name == "mt-nlg-530b"


def test_a_file_a_folder_and_the_preset_agree(tmp_path):
    file = write(tmp_path / "mine", LLAMA)
    by_file, by_folder = load(str(file)), load(str(tmp_path / "mine"))
    assert by_file == by_folder == load(file) == load(tmp_path / "mine")
    assert (by_file.name, by_file.source) == ("mine", str(file))
    assert load(f"{file},n_layers=5").n_layers == 5
    assert load(write(tmp_path, LLAMA, "other.json")).name == "other"


def test_a_path_that_is_there_wins_over_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai-community").mkdir()
    write(tmp_path / "openai-community" / "gpt2", LLAMA)
    assert load("openai-community/gpt2").family == "llama"
    assert load("gpt2").family == "gpt2"
    write(tmp_path / "gpt2", LLAMA)
    assert load("gpt2").family == "gpt2"
    assert load("./gpt2").family == "llama"


def test_a_bare_config_takes_the_defaults_of_its_family():
    tiny = from_dict(LLAMA, name="tiny")
    assert (tiny.n_kv_heads, tiny.d_head, tiny.tied_embeddings, tiny.max_seq) == (
        4,
        16,
        False,
        2048,
    )
    mistral = from_dict(LLAMA | {"model_type": "mistral", "num_attention_heads": 8}, name="tiny")
    assert (mistral.n_kv_heads, mistral.main_layer.attention.window) == (8, 4096)


def test_the_architecture_speaks_where_there_is_no_model_type():
    keys = {k: v for k, v in LLAMA.items() if k != "model_type"} | {"num_attention_heads": 8}
    assert from_dict(keys | {"architectures": ["LlamaForCausalLM"]}, name="t").family == "llama"
    assert from_dict(keys | {"architectures": ["MistralForCausalLM"]}, name="t").family == "mistral"


def test_keys_are_read_ignored_or_listed():
    odd = {"use_cache": True, "num_nextn_predict_layers": 2, "zeta": 3, "eta": None}
    model = from_dict(LLAMA | odd, name="tiny")
    assert model.unused_keys == ("num_nextn_predict_layers", "zeta")
    assert model.ignored_keys == ("eta", "use_cache")
    nested = load("gemma3-4b")
    assert nested.unused_keys == ("vision_config",)
    assert {"torch_dtype", "eos_token_id"} <= set(nested.ignored_keys)
    odd = {"rope_scaling": {"rope_type": "linear", "factor": 2, "mrope_section": [1, 2]}}
    assert from_dict(LLAMA | odd, name="tiny").unused_keys == ("rope_scaling.mrope_section",)


@pytest.mark.parametrize(
    "key",
    [
        "num_zeta_experts",
        "zeta_size",
        "zeta_heads",
        "zeta_dim",
        "num_zeta_layers",
        "n_zeta",
        "d_zeta",
    ],
)
def test_a_count_that_is_not_known_is_refused(key):
    said(
        f"tiny: {key} 4: model type llama has no such count, so parameters or bytes may be counted "
        "wrong. If it changes nothing, delete the key.",
        BadFile,
        **{key: 4},
    )
    said(f"{key} [1, 2]: model type llama has no such count", BadFile, **{key: [1, 2]})
    for nothing in (None, 0, False, "4", 0.5, []):
        assert count.parameters(from_dict(LLAMA | {key: nothing}, name="tiny")) == count.parameters(
            from_dict(LLAMA, name="tiny")
        )


def test_unknown_counts_are_refused_together():
    said(
        "tiny: num_a_experts 4, rope_scaling.b_size 2: model type llama has no such count",
        num_a_experts=4,
        rope_scaling={"rope_type": "linear", "factor": 2, "b_size": 2},
    )


def test_other_unknown_keys_of_a_file_are_told(tmp_path):
    odd = {"zeta": 3, "vision_config": {}, "use_cache": True}
    with pytest.warns(
        IgnoredKey, match=r"config\.json: model type llama has no key zeta; ignored\."
    ):
        model = load(write(tmp_path, LLAMA | odd))
    assert model.unused_keys == ("vision_config", "zeta")


def test_the_architecture_says_the_generation_of_an_unknown_model_type():
    keys = load("deepseek-v3"), presets()["deepseek-v3"].read() | {"model_type": "kimi_k2"}
    assert from_dict(keys[1], name="deepseek-v3", source=keys[0].source) == keys[0]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"hidden_size": None}, "tiny: missing key hidden_size."),
        ({"hidden_size": 0}, "tiny: hidden_size 0 is below 1."),
        ({"hidden_size": -64}, "hidden_size -64 is below 1."),
        ({"hidden_size": "64"}, "hidden_size '64' is not a whole number."),
        ({"hidden_size": 64.5}, "hidden_size 64.5 is not a whole number."),
        ({"hidden_size": True}, "hidden_size True is not a whole number."),
        ({"hidden_size": [64]}, "hidden_size [64] is not a whole number."),
        ({"hidden_size": 10**40}, "hidden_size 1.000e+40 is above 2,147,483,647, the largest dim."),
        ({"hidden_size": 66}, "num_attention_heads 4 does not divide hidden_size 66"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0 is below 1."),
        ({"num_hidden_layers": 200_000}, "num_hidden_layers 200,000 is above 100,000 layers."),
        ({"num_key_value_heads": 3}, "n_kv_heads 3 does not divide n_heads 4"),
        ({"num_key_value_heads": 8}, "n_kv_heads 8 does not divide n_heads 4"),
        ({"attention_bias": "yes"}, "attention_bias 'yes' is not true or false."),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings 1 is not true or false."),
        ({"model_type": "lama"}, 'architecture "lama" is not known. Close: "llama"'),
        ({"model_type": "bert"}, '"bert" is not known. Known model types: arcee, '),
        ({"model_type": None}, 'neither "model_type" nor "architectures"'),
        ({"model_type": 7}, 'neither "model_type" nor "architectures"'),
        ({"model_type": None, "architectures": "Llama"}, 'architecture "Llama" is not known.'),
        ({"model_type": None, "architectures": [3]}, 'neither "model_type" nor "architectures"'),
        ({"model_type": "gemma3", "text_config": 3}, "text_config 3 is not an object."),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "names 1 layers of 2."),
        ({"model_type": "qwen2", "layer_types": ["a", "b"]}, "layer_types has a, b; known are"),
        (
            {"model_type": "qwen2", "layer_types": "full"},
            "layer_types 'full' is not a list of str.",
        ),
        ({"model_type": "llama4", "no_rope_layers": [1], "intermediate_size_mlp": 9}, "of 2."),
        ({"model_type": "gpt2"}, "missing key n_embd."),
        ({"model_type": "mixtral", "num_experts_per_tok": 9, "num_key_value_heads": 4}, "once."),
        ({"model_type": "deepseek_v2"}, "missing key num_experts_per_tok."),
        (
            {"model_type": "qwen3_moe", "num_experts": 8, "num_local_experts": 4},
            "num_experts 8, num_local_experts 4: they mean the same and differ.",
        ),
        ({"model_type": "shardwise"}, "missing key d_model."),
    ],
)
def test_a_wrong_key_is_told(keys, problem):
    said(problem, **keys)


@pytest.mark.parametrize("model_type", ["qwen2_moe", "qwen3_moe", "mixtral", "gpt_oss"])
@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_experts_are_counted_under_any_of_their_names(model_type, key):
    config = from_dict(
        {**LLAMA, "model_type": model_type, "num_key_value_heads": 4, key: 32}, name="tiny"
    )
    assert config.moe.n_experts == 32
    assert not config.unused_keys


def test_all_wrong_keys_are_told_at_once():
    with pytest.raises(BadFile) as caught:
        from_dict({"model_type": "llama", "vocab_size": "many", "mlp_bias": 3}, name="tiny")
    assert sorted(caught.value.problems) == [
        "tiny: missing key hidden_size.",
        "tiny: missing key intermediate_size.",
        "tiny: missing key num_attention_heads.",
        "tiny: missing key num_hidden_layers.",
        "tiny: mlp_bias 3 is not true or false.",
        "tiny: vocab_size 'many' is not a whole number.",
    ]


def test_numbers_no_model_has_are_bad_shapes():
    said("n_kv_heads 3 does not divide n_heads 4", BadShape, num_key_value_heads=3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1,\n  b: 2}', "not JSON at line 2, column 3"),
        ("", "not JSON at line 1, column 1"),
        ("[1, 2]", "a list; a config.json is a JSON object of keys and values."),
        ("3", "a int; a config.json"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "cannot be read (exceeds the limit"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_config_is_told(tmp_path, text, problem):
    with pytest.raises(BadFile) as caught:
        load(write(tmp_path, text))
    assert problem in str(caught.value)


def test_a_file_that_is_no_text_is_told(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(BadFile, match=r"not text \(byte 7 is not UTF-8\)"):
        load(tmp_path)


def test_a_folder_without_config_names_what_it_has(tmp_path):
    with pytest.raises(BadFile, match=r"a folder without config\.json\. It has no JSON file\."):
        load(tmp_path)
    write(tmp_path, {}, "tokenizer.json")
    with pytest.raises(BadFile, match=r"Its JSON files: tokenizer\.json\."):
        load(tmp_path)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(BadFile, match=r"no such file\. To use a preset, give its name\."):
        load(str(tmp_path / "config.json"))
    with pytest.raises(BadFile, match='Close: "llama3-70b"'):
        load("./llama3-70b/config.json")
    with pytest.raises(BadFile, match="not a path"):
        load(f"./{'x' * 5000}.json")
    with pytest.raises(BadFile, match="cannot be read"):
        load("./a\0b.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told(tmp_path):
    file = write(tmp_path, LLAMA)
    file.chmod(0)
    with pytest.raises(BadFile, match="no permission to read it"):
        load(file)


def test_refused_permissions_are_told(tmp_path, monkeypatch):
    file = write(tmp_path, LLAMA)

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(BadFile, match="no permission to read it"):
        load(file)
    monkeypatch.setattr("pathlib.Path.is_dir", refuse)
    with pytest.raises(BadFile, match="no permission to read this folder"):
        load(tmp_path)


def test_an_unknown_name_offers_close_ones():
    with pytest.raises(UnknownName, match=r'unknown model "llama3-71b"\. Close: "llama3-'):
        load("llama3-71b")
    with pytest.raises(UnknownName, match=r"\(\./NAME in the current folder\)"):
        load("nothing like it")
    with pytest.raises(UnknownName):
        load("")


def test_a_window_that_is_not_used_may_be_zero():
    unused = LLAMA | {"model_type": "qwen2", "num_key_value_heads": 4, "sliding_window": 0}
    assert from_dict(unused, name="tiny").main_attention.window is None
    with pytest.raises(BadFile, match="sliding_window 0 is below 1"):
        from_dict(unused | {"use_sliding_window": True}, name="tiny")


def test_a_tiny_model_by_hand():
    tiny = from_dict(LLAMA, name="tiny")
    assert count.parameters(tiny).total == 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64 * 201


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        (None, "bf16"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "bf16"),
        ("mxfp4", "bf16"),
    ],
)
def test_the_dtype_of_the_checkpoint(quantization, dtype):
    data = LLAMA | {"quantization_config": quantization}
    assert from_dict(data, name="tiny").checkpoint_dtype == dtype
    assert (load("gpt-oss-120b").checkpoint_dtype, load("deepseek-v3").checkpoint_dtype) == (
        "mxfp4",
        "fp8",
    )
