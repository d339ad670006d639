"""The words of a strategy, each in one place. Schedules of a pipeline are files of their own, in
`strategy/schedules`.

>>> REMAT_POLICIES["dots"]
('norms', 'mla_up', 'activation')
"""

from __future__ import annotations

# Parts of a layer whose results a backward pass reads, in the order of the forward pass.
PARTS = (
    "norms", "mla_up", "q", "k", "v", "attention", "out", "gate", "up", "activation", "down",
)  # fmt: skip
LAYER = "layer"  # the whole layer in place of its parts: nothing but its input is kept

# Policy -> the parts that run again, from most memory to least: "norms" drops the gathered inputs
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

# Communication that runs beside computation. Frameworks do the default ones without being asked:
# gradient sums and weight gathers beside other layers, sends between stages beside other
# microbatches. The chosen ones are hidden when it is asked for: products over `tensor` cut into
# pieces (collective matmul), tokens on their way to experts beside another half of the batch.
DEFAULT_OVERLAPS = ("grad_reduce", "param_gather", "pipe_p2p")
CHOSEN_OVERLAPS = ("tp_comm", "expert_all_to_all")
OVERLAPS = (*DEFAULT_OVERLAPS, *CHOSEN_OVERLAPS)

# What may wait in host memory: state, or every kept activation, or those of named parts.
CHOSEN_OFFLOADS = ("optimizer", "activations")
OFFLOADS = ("weights", "gradients", *CHOSEN_OFFLOADS, "layer_input", *PARTS)

# How attention sees the tokens of other chips under `context`: their keys and values are gathered
# ("gather"), passed round while attention runs ("ring", arXiv 2310.01889), or heads are exchanged
# for tokens ("ulysses", arXiv 2309.14509).
CONTEXT_KINDS = ("gather", "ring", "ulysses")

# How an engine holds its weights, and where a KV cache lies whose heads are fewer than the chips of
# `tensor`: see `strategy/serving_layout`.
WEIGHT_LAYOUTS = ("stationary", "2d", "gathered")
KV_SPLITS = ("copied", "batch", "sequence")

NO_SCHEDULE = "none"  # of a layout without a pipeline
