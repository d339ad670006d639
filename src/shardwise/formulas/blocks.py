"""FLOPs and network bytes of one block of a layer under a mesh: the tables of book §5.

They follow from the block's einsums under the training rules, the gradients of these einsums, and
the collectives that the sharding algebra derives for both. Network bytes of an MLP of two bf16
matrices, if one mesh role has all chips:

    data    forward 0       backward 8DF
    fsdp    forward 4DF     backward 8DF
    tensor  forward 4BD     backward 4BD
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.arrays import Num
from shardwise.models import ModelConfig
from shardwise.ops.program import training_step
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.rules import TRAIN, Rules, only


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """FLOPs and network bytes of one block of one layer, in the forward or the backward pass.

    Args:
        flops: FLOPs of one chip; of the one with the largest shards where shards are uneven.
        moved_bytes: Bytes of the arrays that collectives move, by mesh role. An AllReduce counts
            twice: it is a ReduceScatter and an AllGather.
    """

    flops: Num
    moved_bytes: Mapping[str, Num] = field(default_factory=dict)

    @property
    def bytes(self) -> Num:
        """Network bytes of all mesh roles together."""
        return sum(self.moved_bytes.values())


def block_cost(
    config: ModelConfig,
    tokens: int,
    mesh: Mesh,
    *,
    block: str = "mlp",
    element_bytes: Num = 2.0,
    rules: Rules = TRAIN,
) -> dict[str, BlockCost]:
    """FLOPs and network bytes of a block, by phase: `forward` and `backward`.

    Args:
        config: A model whose layers are all of one kind.
        tokens: B, tokens of the global batch.
        mesh: Sizes of the mesh roles.
        block: Name of the block, the first part of its operations' names: `mlp`, `attn`, `moe`, ...
        element_bytes: Bytes per element of weights, gradients and activations.

    >>> config = ModelConfig.dense(
    ...     n_layers=1, d_model=64, d_ff=256, n_heads=4, vocab=8, gated=False
    ... )
    >>> cost = block_cost(config, 512, Mesh(data=16))
    >>> cost["backward"].bytes == 8 * 64 * 256
    True
    """
    sizes = mesh.sizes
    # Costs depend on batch x seq only: any length that `tensor` and `context` divide will do.
    seq = sizes["tensor"] * sizes["context"]
    step = training_step(config, tokens / seq, seq, only(rules, sizes), remat="none")
    costs = {}
    for phase in ("forward", "backward"):
        flops: Num = 0
        moved_bytes: dict[str, Num] = {}
        for matmul in step.matmuls:
            if matmul.phase == phase and matmul.term.module == block:
                flops = flops + matmul.flops(sizes) / matmul.count
        for transfer in step.transfers:
            if transfer.phase == phase and transfer.term.module == block:
                n_bytes = transfer.elements(sizes) * element_bytes
                if transfer.move.kind == "all_reduce":
                    n_bytes = 2 * n_bytes
                moved_bytes[transfer.role] = moved_bytes.get(transfer.role, 0) + n_bytes
        costs[phase] = BlockCost(flops=flops, moved_bytes=moved_bytes)
    return costs
