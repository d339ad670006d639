"""Presets: complete, reachable by every name, and of the size that was published."""

from __future__ import annotations

import re

import pytest

from shardwise.models import count, load, names
from shardwise.models.catalog import catalog, facts
from shardwise.models.presets import FOLDER, find, presets

# Parameters of the published checkpoints (hub safetensors metadata; of the text model alone).
PUBLISHED = {
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "olmo2-7b": 7_298_617_344,
    "olmo2-32b": 32_234_279_936,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-6.9b": 6_857_302_016,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}

# Billions, as their papers print them.
PAPERS = {
    "gpt3-175b": (175, 0.5), "megatron-1t": (1008.0, 0.05), "megatron-145b": (145.6, 0.05),
    "mt-nlg-530b": (530, 0.5), "palm-8b": (8.63, 0.005), "palm-62b": (62.50, 0.005),
    "palm-540b": (540.35, 0.01), "deepseek-v3": (671, 0.5), "llama4-scout": (109, 1.5),
    "llama4-maverick": (400, 1), "falcon-40b": (41.3, 0.05),
}  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameters_of_published_checkpoints(name, parameters):
    assert count.parameters(load(name)).total == parameters


@pytest.mark.parametrize(("name", "published"), PAPERS.items())
def test_parameters_that_papers_print(name, published):
    billions, rounding = published
    assert count.parameters(load(name)).total / 1e9 == pytest.approx(billions, abs=rounding)


def test_index_and_files_are_the_same_set():
    files = {path.stem for path in FOLDER.glob("*.json")} - {"index"}
    assert files == set(names())


def test_every_name_leads_to_its_preset_and_no_name_to_two():
    for name, preset in presets().items():
        spellings = (name, name.upper(), *preset.aliases)
        hub = (preset.source,) if preset.source.count("/") == 1 else ()
        for spelling in (*spellings, *hub):
            found = find(spelling)
            assert found is not None, spelling
            assert found.name == name, spelling


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama2-70b"),
        ("google/gemma-3-27b-it", "gemma3-27b"),
    ],
)
def test_a_tuned_checkpoint_has_the_sizes_of_its_base(hub, name):
    assert find(hub).name == name


def test_the_owner_of_a_hub_name_counts():
    assert find("meta-llama/Meta-Llama-3-70B") is not None
    assert find("someone-else/Meta-Llama-3-70B") is None


@pytest.mark.parametrize("name", names())
def test_every_preset_has_a_source_a_date_and_no_key_that_was_missed(name):
    config, preset = load(name), presets()[name]
    assert len(preset.source) > 5
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", preset.as_of)
    assert config.source == preset.source
    assert set(config.unused_keys) <= {
        "vision_config",  # the text model is counted
        "quantization_config",  # how a checkpoint is stored
        "num_nextn_predict_layers",  # layers beside the model
        "sliding_window_size",  # says sliding_window again
    }


def test_llama3_70b_is_the_whole_published_file():
    data = presets()["llama3-70b"].read()
    assert len(data) == 23
    assert data["rope_theta"] == 500000.0
    assert len(load("llama3-70b").ignored_keys) == 8


def test_facts_in_a_line():
    assert facts("llama3-70b").line == (
        "70.6B parameters, 80 layers of 8,192, KV 328 kB per token, 8,192 tokens"
    )
    assert "(37.6B active)" in facts("deepseek-v3").line
    assert tuple(row.name for row in catalog()) == names()
