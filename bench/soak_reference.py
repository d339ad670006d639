"""The tiny model of `bench/soak.py`, and its greedy outputs by a loop without cache or batches."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.serve.model_files import find_model
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime.logits import logits
from tests.unit.serve.model_files.tiny import TEMPLATE, bpe_tokenizer, write_folder

CONTEXT = 192
N_PROMPTS = 48
LONGEST_PROMPT, LONGEST_OUTPUT = 110, 72  # tokens
N_STEMS = 5  # beginnings that prompts share
END = 2  # token that ends an output
N_SPECIAL = 3  # tokens without text
MARGIN = 1e-3  # of the highest logit over the next: what rounding cannot turn around


def write_model(folder: Path) -> Path:
    """Write a tiny Llama with random weights and a chat template."""
    write_folder(folder, eos_token_id=END, max_position_embeddings=CONTEXT)
    template = TEMPLATE + "<|im_start|>assistant\n"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@dataclass(frozen=True, slots=True)
class Known:
    """A prompt whose output is known.

    Args:
        prompt: its tokens.
        output: tokens that follow greedily.
        ended: whether the model ends its output after them.
        pieces: bytes of each token of the output.
    """

    prompt: list[int]
    output: list[int]
    ended: bool
    pieces: list[bytes]

    def text(self, n: int) -> str:
        """The text of the first n tokens."""
        return b"".join(self.pieces[:n]).decode(errors="replace")


def known_prompts(folder: Path, seed: int) -> list[Known]:
    """Random prompts, some with a common beginning, and the outputs of the model for them."""
    prompts = _random_prompts(random.Random(seed))
    model = find_model(str(folder))
    table = Table(rules={}, mesh=role_mesh(Mesh().sizes, np.array(jax.devices()[:1])))
    forward = jax.jit(logits(model.config, table, CONTEXT, jnp.float32))
    weights = model.weights.load(table, jnp.float32)
    texts = [list(prompt) for prompt in prompts]
    margins: list[list[float]] = [[] for _ in prompts]
    for _ in range(LONGEST_OUTPUT):
        tokens_BT = np.zeros((len(texts), CONTEXT), np.int32)
        for row, text in enumerate(texts):
            tokens_BT[row, : len(text)] = text
        last = [len(text) - 1 for text in texts]
        logits_BV = np.asarray(forward(weights, tokens_BT)[np.arange(len(texts)), last])
        highest_BV = np.sort(logits_BV)
        for row, text in enumerate(texts):
            text.append(int(logits_BV[row].argmax()))
            margins[row].append(float(highest_BV[row, -1] - highest_BV[row, -2]))
    known = [_known(*found) for found in zip(prompts, texts, margins, strict=True)]
    return [one for one in known if one.output]


def _random_prompts(rng: random.Random) -> list[list[int]]:
    def tokens(n: int) -> list[int]:
        return [rng.randrange(N_SPECIAL, 320) for _ in range(n)]

    stems = [[], *(tokens(rng.randint(16, 60)) for _ in range(N_STEMS))]
    prompts = []
    for _ in range(N_PROMPTS):
        stem = rng.choice(stems)
        rest = tokens(rng.randint(1, LONGEST_PROMPT - len(stem)))
        prompts.append([*stem, *rest, _FULL_STOP])  # no half character, which the output would end
    return prompts


def _known(prompt: list[int], text: list[int], margins: list[float]) -> Known:
    output: list[int] = []
    ended = False
    for token, margin in zip(text[len(prompt) :], margins, strict=True):
        if margin < MARGIN:
            break
        if token == END:
            ended = True
            break
        output.append(token)
    return Known(prompt, output, ended, [_bytes(token) for token in output])


def _bytes(token: int) -> bytes:
    """The bytes of a token of the byte-level tokenizer; a special token has none."""
    if token < N_SPECIAL:
        return b""
    return b"".join(_BYTES[letter] for letter in _WRITTEN[token])


def _byte_of_letters() -> dict[str, bytes]:
    """GPT-2's letter of each byte: those that print stand for themselves, the rest from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): bytes([byte]) for byte in plain}
    rest = [byte for byte in range(256) if byte not in plain]
    letters |= {chr(256 + i): bytes([byte]) for i, byte in enumerate(rest)}
    assert set(letters) == set(ByteLevel.alphabet())
    return letters


_BYTES = _byte_of_letters()
_WRITTEN = {id: text for text, id in bpe_tokenizer().get_vocab().items()}
_FULL_STOP = bpe_tokenizer().token_to_id(".")
