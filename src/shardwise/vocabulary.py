"""Names of the options of a strategy. Pipeline schedules are files in `strategy/schedules`.

>>> REMAT_POLICIES["dots"]
('norms', 'mla_up', 'activation')
"""

from __future__ import annotations

# Parts of a layer whose results the backward pass reads, in the order of the forward pass.
PARTS = (
    "norms", "mla_up", "q", "k", "v", "attention", "out", "gate", "up", "activation", "down",
)  # fmt: skip
LAYER = "layer"  # all parts: only the input of the layer is saved

# Policy -> recomputed parts, from most memory to least: "norms" drops the gathered inputs
# of blocks (Megatron's sequence parallelism gathers them again, arXiv 2205.05198), "dots" keeps the
# results of matmuls (MaxText's minimal_with_context; not the wide ones of latent attention, as in
# DeepSeek-V3, arXiv 2412.19437 section 3.2.3), "mlp" those of attention only (MaxText's
# save_dot_with_context_except_mlp, Megatron's recomputed "mlp"), "full" the inputs of layers only.
REMAT_POLICIES: dict[str, tuple[str, ...]] = {
    "none": (),
    "norms": ("norms",),
    "dots": ("norms", "mla_up", "activation"),
    "mlp": ("norms", "mla_up", "gate", "up", "activation"),
    "full": (LAYER,),
}
REMAT_WORDS = (*REMAT_POLICIES, "auto")  # "auto": the fastest that fits

# Communication that overlaps with compute. Frameworks overlap the default ones: gradient reductions
# and weight gathers with other layers, sends between stages with other microbatches. The chosen
# ones need an option: matmuls over `tensor` in pieces (collective matmul), and the AllToAll of
# experts with the other half of the batch.
DEFAULT_OVERLAPS = ("grad_reduce", "param_gather", "pipe_p2p")
CHOSEN_OVERLAPS = ("tp_comm", "expert_all_to_all")
OVERLAPS = (*DEFAULT_OVERLAPS, *CHOSEN_OVERLAPS)

# Arrays to offload to host memory: state, all saved activations, or those of named parts.
CHOSEN_OFFLOADS = ("optimizer", "activations")
OFFLOADS = ("weights", "gradients", *CHOSEN_OFFLOADS, "layer_input", *PARTS)

# Attention under context parallelism: keys and values are gathered ("gather"), passed around a ring
# during attention ("ring", arXiv 2310.01889), or an AllToAll shards heads instead of tokens
# ("ulysses", arXiv 2309.14509).
CONTEXT_KINDS = ("gather", "ring", "ulysses")

# Weight layouts of an engine, and layouts of a KV cache whose heads are fewer than the chips of
# `tensor`: see `strategy/serving_layout`.
WEIGHT_LAYOUTS = ("stationary", "2d", "gathered")
KV_SPLITS = ("copied", "batch", "sequence")

NO_SCHEDULE = "none"  # schedule of a layout without a pipeline
