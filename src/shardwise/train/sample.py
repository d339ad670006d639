"""Text from the weights of a run, token by token without a cache: a look at what was learned.

Every token is one forward pass over a whole window, by the layers and layout of the training step:
right for a small model and a few lines. tokens_BT are the windows, one for each part of a batch.
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
from shardwise.runtime.blocks.model import embed, run_layers, with_holders
from shardwise.runtime.training.partitioned import PartitionedStep
from shardwise.runtime.training.step import BATCH, TrainStep
from shardwise.runtime.weights.descriptions import Tree, each
from shardwise.train.tokenizer import Tokenizer

Array = jax.Array

TOKENS = 200
TEMPERATURE = 0.7


def sample(
    made: TrainStep,
    weights: Tree,
    tokenizer: Tokenizer,
    begin: str,
    *,
    n_tokens: int = TOKENS,
    temperature: float = TEMPERATURE,
    seed: int = 0,
) -> str:
    """How the model goes on with a text; equal for equal weights and seeds.

    Raises:
        BadInput: see `opening`.
    """
    tokens, seq = opening(made, tokenizer, begin), made.job.seq
    following, sharding = _following(made)
    shape = (made.table.mesh.size(BATCH), seq)
    key, start = jax.random.key(seed), len(tokens)
    while len(tokens) - start < n_tokens:
        window = tokens[-(seq - 1) :] if len(tokens) >= seq else tokens
        padded = np.broadcast_to(np.pad(window, (0, seq - len(window))), shape).astype(np.int32)
        tokens_BT = jax.make_array_from_callback(shape, sharding, padded.__getitem__)
        key, now = jax.random.split(key)
        chosen = int(following(weights, tokens_BT, len(window) - 1, temperature, now))
        if chosen == tokenizer.end:
            break
        tokens.append(chosen)
    return tokenizer.decode(tokens)


def opening(made: TrainStep, tokenizer: Tokenizer, begin: str) -> list[int]:
    """The tokens that a sample begins with. Nothing else is needed: a run asks before it begins.

    Raises:
        BadInput: the layout cuts sequences or layers, or the compiler cuts the step; the text is
            empty or has no room.
    """
    sizes, seq = made.layout.sizes, made.job.seq
    tokens = tokenizer.encode(begin)
    problems = []
    if sizes["context"] * sizes["pipe"] > 1:
        problems.append("no sample is drawn under context or pipe: plan with 1 of each for it.")
    if isinstance(made, PartitionedStep):
        problems.append(
            "no sample is drawn where the compiler chooses collectives: --collectives plan draws "
            "one, also of checkpoints of this run."
        )
    if not 0 < len(tokens) < seq:
        problems.append(f"a sample begins with 1 to {seq - 1:,} tokens; there are {len(tokens):,}.")
    raise_all(BadInput, problems)
    return tokens


def _following(made: TrainStep) -> tuple[Any, NamedSharding]:
    """`(weights, tokens_BT, place, temperature, key) -> token after that place`, and the layout of
    tokens."""
    on, stack = made.table.mesh, made.stack
    specs = each(lambda info: info.spec(made.table), made.infos)
    tokens = PartitionSpec(on.axis_names(BATCH))
    cut = on.axis_names(("tensor",)) if made.table.roles("activations", ("V",)) else ()

    def local(weights: Tree, tokens_BT: Array, place: Array) -> Array:
        both = with_holders(weights, weights)  # no gradient is held: nothing is differentiated
        outer = both["outer"], made.deals["outer"]
        core = sequence_attention(made.config, made.layout, made.table, made.job.seq)
        x_BTD = embed(stack, core, tokens_BT, *outer)
        x_BTD = run_layers(stack, made.layout, core, x_BTD, both["layers"], made.deals["layers"])
        logits_V = head(stack, x_BTD, *outer)[0, place]
        return lax.all_gather(logits_V, cut, tiled=True) if cut else logits_V

    logits = jax.shard_map(
        local,
        mesh=on.jax_mesh,
        in_specs=(specs, tokens, PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )

    def choose(
        weights: Tree, tokens_BT: Array, place: Array, temperature: Array, key: Array
    ) -> Array:
        scores_V = logits(weights, tokens_BT, place) / jnp.maximum(temperature, 1e-6)
        return jax.random.categorical(key, scores_V)

    return jax.jit(choose), NamedSharding(on.jax_mesh, tokens)
