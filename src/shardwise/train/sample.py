"""Generation of a text sample from the weights of a training run, without a KV cache.

Each new token costs one forward pass over a whole sequence, in the layout of the training step.
That is fast enough for a small model and a few lines. The batch of the training step is kept:
every row of tokens_BT holds the same sequence.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import BadInput, raise_all
from shardwise.runtime.blocks.attention_core import sequence_attention
from shardwise.runtime.blocks.head import head
from shardwise.runtime.blocks.model import embed, run_layers, with_accumulators
from shardwise.runtime.tokenizer import Tokenizer
from shardwise.runtime.training.partitioned import PartitionedStep
from shardwise.runtime.training.step import BATCH, TrainStep
from shardwise.runtime.weights.descriptions import Tree, map_infos

Array = jax.Array

MAX_NEW_TOKENS = 200
TEMPERATURE = 0.7


def sample(
    train_step: TrainStep,
    weights: Tree,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    n_tokens: int = MAX_NEW_TOKENS,
    temperature: float = TEMPERATURE,
    seed: int = 0,
) -> str:
    """Return the prompt and its continuation; equal weights and seeds give equal text.

    Raises:
        BadInput: see `encode_prompt`.
    """
    tokens = encode_prompt(train_step, tokenizer, prompt)
    seq = train_step.job.seq
    sample_next, sharding = _sampler(train_step)
    shape = (train_step.table.mesh.size(BATCH), seq)
    key = jax.random.key(seed)
    prompt_length = len(tokens)
    while len(tokens) - prompt_length < n_tokens:
        window = tokens
        if len(tokens) >= seq:
            window = tokens[-(seq - 1) :]
        padded = np.broadcast_to(np.pad(window, (0, seq - len(window))), shape).astype(np.int32)
        tokens_BT = jax.make_array_from_callback(shape, sharding, padded.__getitem__)
        key, token_key = jax.random.split(key)
        token = int(sample_next(weights, tokens_BT, len(window) - 1, temperature, token_key))
        if token == tokenizer.end:
            break
        tokens.append(token)
    return tokenizer.decode(tokens)


def encode_prompt(train_step: TrainStep, tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the token ids of the prompt; called before training to report problems early.

    Raises:
        BadInput: the layout shards sequences (context) or layers (pipe), XLA's partitioner chooses
            the collectives, or the prompt is empty or not shorter than a sequence.
    """
    sizes = train_step.layout.sizes
    seq = train_step.job.seq
    tokens = tokenizer.encode(prompt)
    problems = []
    if sizes["context"] * sizes["pipe"] > 1:
        problems.append(
            f"sampling is not available with context {sizes['context']} and pipe {sizes['pipe']}: "
            "plan with 1 of each."
        )
    if isinstance(train_step, PartitionedStep):
        problems.append(
            "sampling is not available with --collectives compiler; --collectives plan can resume "
            "the checkpoints of this run, and sample."
        )
    if not 0 < len(tokens) < seq:
        problems.append(
            f"the prompt of a sample has 1 to {seq - 1:,} tokens; this one has {len(tokens):,}."
        )
    raise_all(BadInput, problems)
    return tokens


def _sampler(train_step: TrainStep) -> tuple[Any, NamedSharding]:
    """Return `(weights, tokens_BT, position, temperature, key) -> next token`, and the sharding
    of `tokens_BT`. The next token is sampled from the logits at `position`."""
    mesh = train_step.table.mesh
    settings = train_step.settings
    partitions = train_step.partitions
    specs = map_infos(lambda info: info.spec(train_step.table), train_step.infos)
    token_spec = PartitionSpec(mesh.axis_names(BATCH))
    vocab_axes: tuple[str, ...] = ()
    if train_step.table.roles("activations", ("V",)):
        vocab_axes = mesh.axis_names(("tensor",))

    def last_logits(weights: Tree, tokens_BT: Array, position: Array) -> Array:
        # The second argument holds gradient accumulators, which a forward pass does not read.
        pairs = with_accumulators(weights, weights)
        outer = (pairs["outer"], partitions["outer"])
        layout = train_step.layout
        core = sequence_attention(train_step.config, layout, train_step.table, train_step.job.seq)
        x_BTD = embed(settings, core, tokens_BT, *outer)
        x_BTD = run_layers(settings, layout, core, x_BTD, pairs["layers"], partitions["layers"])
        logits_V = head(settings, x_BTD, *outer)[0, position]
        if not vocab_axes:
            return logits_V
        return lax.all_gather(logits_V, vocab_axes, tiled=True)

    logits = jax.shard_map(
        last_logits,
        mesh=mesh.jax_mesh,
        in_specs=(specs, token_spec, PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )

    def choose(
        weights: Tree, tokens_BT: Array, position: Array, temperature: Array, key: Array
    ) -> Array:
        scores_V = logits(weights, tokens_BT, position) / jnp.maximum(temperature, 1e-6)
        return jax.random.categorical(key, scores_V)

    return jax.jit(choose), NamedSharding(mesh.jax_mesh, token_spec)
