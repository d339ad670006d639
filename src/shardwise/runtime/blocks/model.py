"""The whole model on one chip's shards: embedding, scans over layers, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import Offloadable

from shardwise.estimate.training.memory.activations import is_offloaded, is_recomputed
from shardwise.models import Layer, Segment
from shardwise.models import stack as model_stack
from shardwise.models.activations import layer_activations
from shardwise.ops.einsum import Array as NamedArray
from shardwise.ops.einsum import Dim
from shardwise.ops.sharded import Move
from shardwise.runtime.blocks import elementwise
from shardwise.runtime.blocks.attention import AttentionCore
from shardwise.runtime.blocks.attention_core import sequence_attention
from shardwise.runtime.blocks.head import head_loss, outer_block
from shardwise.runtime.blocks.layers import LayerSettings, Partitions, Weights, run_layer
from shardwise.runtime.blocks.products import BlockProducts
from shardwise.runtime.kernels import cpu, cudnn
from shardwise.runtime.kernels.attention import SAVED
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.runtime.training import host_offload
from shardwise.runtime.weights.descriptions import Tree
from shardwise.strategy.layout import Form

Array = jax.Array
LayerFunction = Callable[[Array, Weights], Array]
PeriodFunction = Callable[[Array, Sequence[Weights]], Array]

MAX_UNROLLED_LAYERS = {"cpu": 16, "gpu": 128}
MIN_UNROLLED_RESIDUAL = 1 << 19  # elements per device; unrolling does not pay below on CPUs

OFFLOADED = Offloadable(src="device", dst=host_offload.KIND)


def with_accumulators(weights: Tree, accumulators: Tree | None) -> Tree:
    """Pair every weight with the accumulator of its gradient: see `products.BlockProducts`.

    Without accumulators each weight is paired with None: the weights themselves are differentiated.
    """
    if accumulators is None:
        return jax.tree.map(lambda weight: (weight, None), weights)
    return jax.tree.map(lambda weight, zeros: (weight, zeros), weights, accumulators)


def embed(
    settings: LayerSettings,
    core: AttentionCore,
    tokens_BT: Array,
    weights: Weights,
    partitions: Partitions,
) -> Array:
    """The residual before the first layer: embeddings of the tokens, plus learned positions.

    If `tensor` shards the vocabulary, each chip looks up the tokens of its part, and the rows are
    summed over chips.
    """
    block = outer_block(settings, "embed", weights, partitions)
    program = block.program("embed")
    with jax.named_scope("embed"):
        moves = tuple(move for move in program.before if move.before.name == "embedding")
        embedding_VD = block.weight("embedding", moves)
        x_BTD = embedding_VD[tokens_BT]
        if settings.table.roles("activations", ("V",)):
            n_rows = embedding_VD.shape[0]
            local_tokens = tokens_BT - settings.table.index(("tensor",)) * n_rows
            is_local = (local_tokens >= 0) & (local_tokens < n_rows)
            x_BTD = embedding_VD[jnp.where(is_local, local_tokens, 0)]
            x_BTD = x_BTD * is_local[..., None].astype(embedding_VD.dtype)
        for move in program.after:
            x_BTD = settings.table.apply(move, x_BTD)
        if settings.config.scaled_embeddings:
            x_BTD = x_BTD * jnp.asarray(settings.config.d_model**0.5, x_BTD.dtype)
        x_BTD = elementwise.multiply(x_BTD, settings.config.embedding_scale)
    if "position" in weights:
        with jax.named_scope("position"):
            x_BTD = x_BTD + _positions(settings, block, core.positions(tokens_BT.shape[1]))
    return x_BTD


def _positions(settings: LayerSettings, block: BlockProducts, positions_BT: Array) -> Array:
    """Learned position embeddings at `positions_BT`, for this chip's tokens of the residual."""
    table = settings.table
    d_roles = table.roles("weights", ("P", "D")).get("D", ())
    sharded = NamedArray("position", (Dim("P"), Dim("D", d_roles)))
    moves: tuple[Move, ...] = ()
    if not set(d_roles) <= set(table.width_roles):
        moves = (Move("all_gather", d_roles, sharded, sharded.with_axes({})),)
        d_roles = ()
    position_PD = block.weight("position", moves)
    width_roles = [role for role in table.width_roles if role not in d_roles]
    position_PD = table.slice(position_PD, width_roles, 1)
    input_roles = table.roles("activations", ("T",)).get("T", ())
    residual_roles = table.roles("residual", ("T",)).get("T", ())
    slice_roles = [role for role in residual_roles if role not in input_roles]
    return position_PD[table.slice(positions_BT, slice_roles, 1)]


def run_layers(
    settings: LayerSettings,
    form: Form,
    core: AttentionCore,
    x_BTD: Array,
    layers: Sequence[Tree],
    partitions: Sequence[Partitions],
) -> Array:
    """The residual after all layers: one scan for each segment of layers that repeats a period.

    Args:
        settings: model, sharding rules and options that all layers share.
        form: discrete choices of the layout.
        core: computes attention between the projections.
        x_BTD: the residual before the first layer.
        layers: weights of each stack of `weights.descriptions.layer_stacks`, with accumulators.
        partitions: update partitions of each stack's weights.
    """
    start = 0
    for segment in model_stack(settings.config):
        stacks = slice(start, start + len(segment.kinds))
        start = stacks.stop
        run_period = period_function(settings, form, core, segment, partitions[stacks])

        def step(
            x_BTD: Array, weights: Sequence[Weights], run_period: PeriodFunction = run_period
        ) -> tuple[Array, None]:
            return run_period(x_BTD, weights), None

        unroll = scan_unroll(settings.table.mesh, form, segment.repeats, x_BTD.size)
        x_BTD, _ = lax.scan(step, x_BTD, tuple(layers[stacks]), unroll=unroll)
    return x_BTD


def scan_unroll(mesh: RoleMesh, form: Form, n_layers: int, residual_size: int) -> int:
    """Number of layers per iteration of the scan over layers: all of them, or one.

    A loop copies the saved activations of each layer into stacked arrays and back, and slices of
    stacked weights (on CPUs 16-bit numbers are converted to fp32 on the way). On a CPU a scan of
    few, large layers is unrolled completely, on GPUs any but a very long one. Compilation takes
    longer in proportion to the number of layers. On several GPUs a scan stays a loop if it saves
    the residual only: there is little to copy, and without a loop weights would be gathered long
    before their layer (16 layers over fsdp 8: 5.9 GiB at the peak instead of 3.6).

    Args:
        mesh: the devices.
        form: discrete choices of the layout.
        n_layers: length of the scan.
        residual_size: number of elements of the residual on a device.
    """
    least_size = MIN_UNROLLED_RESIDUAL if mesh.platform == "cpu" else 0
    most = MAX_UNROLLED_LAYERS.get(mesh.platform, 1)
    if mesh.platform == "gpu" and mesh.jax_mesh.size > 1 and form.full_remat:
        most = 1
    return n_layers if n_layers <= most and residual_size >= least_size else 1


def period_function(
    settings: LayerSettings,
    form: Form,
    core: AttentionCore,
    segment: Segment,
    partitions: Sequence[Partitions],
) -> PeriodFunction:
    """Make the function that runs the layers of one period of a segment."""
    layer_functions = []
    for kind, layer_partitions in zip(segment.kinds, partitions, strict=True):
        layer = settings.config.groups[kind].layer
        layer_functions.append(_checkpointed(settings, form, core, layer, layer_partitions))

    def run_period(x_BTD: Array, weights: Sequence[Weights]) -> Array:
        for run, layer_weights in zip(layer_functions, weights, strict=True):
            x_BTD = run(x_BTD, layer_weights)
        return x_BTD

    return run_period


def _checkpointed(
    settings: LayerSettings, form: Form, core: AttentionCore, layer: Layer, partitions: Partitions
) -> LayerFunction:
    """Make the function of a layer; it saves the activations that the layout's remat keeps.

    The layout may offload some of them to host memory.
    """

    def run(x_BTD: Array, weights: Weights) -> Array:
        return run_layer(settings, layer, core, x_BTD, weights, partitions)

    rows = layer_activations(settings.config, layer)
    saved = {row.name for row in rows if not is_recomputed(form, row.name, layer)}
    offloaded = {name for name in saved if is_offloaded(form, name)}
    saves_all = len(saved) == len(rows) and not offloaded
    if saves_all and cpu.saves_all_residuals(settings.table.mesh):
        return run

    def policy(primitive: Any, *_: Any, **params: Any) -> Any:
        name = params["name"] if primitive.name == "name" else None
        if cudnn.is_flash_attention(primitive):
            name = SAVED
        return OFFLOADED if name in offloaded else name in saved

    return jax.checkpoint(run, policy=policy)


def loss_function(
    settings: LayerSettings, form: Form, partitions: Tree
) -> Callable[[Tree, Tree | None, Array, Array], Array]:
    """Make the function of (weights, accumulators, tokens_BT, targets_BT) that is differentiated.

    It returns this chip's part of the summed loss.
    """

    def loss(
        weights: Tree, accumulators: Tree | None, tokens_BT: Array, targets_BT: Array
    ) -> Array:
        pairs = with_accumulators(weights, accumulators)
        outer = pairs["outer"], partitions["outer"]
        core = sequence_attention(settings.config, form, settings.table, settings.seq)
        x_BTD = embed(settings, core, tokens_BT, *outer)
        x_BTD = run_layers(settings, form, core, x_BTD, pairs["layers"], partitions["layers"])
        return head_loss(settings, form, x_BTD, targets_BT, *outer)

    return loss
