"""Names of the choices of a strategy: remat, overlap, offload, attention, layouts of serving.

Pipeline schedules are not listed here: each is a file in `strategy/schedules`.

>>> REMAT_POLICIES["dots"]
('norms', 'mla_up', 'activation')
"""

from __future__ import annotations

# Parts of a layer whose results the backward pass needs, in the order of the forward pass.
PARTS = (
    "norms", "mla_up", "q", "k", "v", "attention", "out", "gate", "up", "activation", "down",
)  # fmt: skip
LAYER = "layer"  # stands for all parts: only the input of the layer is saved

# Policy -> parts that the backward pass recomputes. From most memory to least:
# "none"   saves all parts.
# "norms"  recomputes the gathered inputs of blocks, as Megatron's sequence parallelism does
#          (arXiv 2205.05198).
# "dots"   saves the results of matmuls, except the wide ones of latent attention, which
#          DeepSeek-V3 recomputes too (arXiv 2412.19437 section 3.2.3). MaxText's
#          minimal_with_context.
# "mlp"    saves the results of matmuls in attention only. MaxText's
#          save_dot_with_context_except_mlp, Megatron's recomputed "mlp".
# "full"   saves the inputs of layers only.
REMAT_POLICIES: dict[str, tuple[str, ...]] = {
    "none": (),
    "norms": ("norms",),
    "dots": ("norms", "mla_up", "activation"),
    "mlp": ("norms", "mla_up", "gate", "up", "activation"),
    "full": (LAYER,),
}
REMAT_WORDS = (*REMAT_POLICIES, "auto")  # "auto": the fastest policy that fits

# Communication that overlaps with compute. By default, frameworks overlap gradient reductions and
# weight gathers with the compute of other layers, and sends between stages with other
# microbatches. Two more need an option: "tp_comm" splits matmuls over `tensor` into pieces
# (collective matmul), "expert_all_to_all" overlaps with the other half of the batch.
DEFAULT_OVERLAPS = ("grad_reduce", "param_gather", "pipe_p2p")
OPTIONAL_OVERLAPS = ("tp_comm", "expert_all_to_all")
OVERLAPS = (*DEFAULT_OVERLAPS, *OPTIONAL_OVERLAPS)

# Settings of a framework's kernels: CUDA graphs of whole layers (or a step), of attention or Mamba
# alone, or of the feed-forward network or experts alone; attention in 8 bits, where products are.
GRAPH_SHARES = {"cuda_graphs": 1.0, "attn_graphs": 0.5, "mlp_graphs": 0.5}  # of a layer's kernels
KERNELS = (*GRAPH_SHARES, "fp8_attention")
NO_KERNELS = "none"  # none of these settings, not even those that are usual

# Arrays that can be offloaded to host memory: weights, gradients, optimizer state, all saved
# activations, or the saved activations of one part of a layer.
OPTIONAL_OFFLOADS = ("optimizer", "activations")
STATE_OFFLOADS = ("weights", "gradients", "optimizer")
OFFLOADS = ("weights", "gradients", *OPTIONAL_OFFLOADS, "layer_input", *PARTS)

# Attention under context parallelism: "gather" gathers keys and values, "ring" passes them around a
# ring during attention (arXiv 2310.01889), "ulysses" shards heads instead of tokens, by an AllToAll
# (arXiv 2309.14509).
CONTEXT_KINDS = ("gather", "ring", "ulysses")

# Layouts of a serving engine's weights, and of a KV cache that has fewer heads than `tensor` has
# chips: see `strategy/serving_layout`.
WEIGHT_LAYOUTS = ("stationary", "2d", "gathered")
KV_SPLITS = ("copied", "batch", "sequence")

NO_SCHEDULE = "none"  # the schedule of a layout without a pipeline
# Training frameworks whose published runs the rates are fitted to; "unknown" is the mean of all.
UNKNOWN_FRAMEWORK = "unknown"
FRAMEWORKS = (
    "megatron", "nemo", "torchtitan", "maxtext", "nanotron", "deepspeed", "megatron-deepspeed",
    "llm-foundry", "automodel", "hai-llm", UNKNOWN_FRAMEWORK,
)  # fmt: skip
# Other names -> the framework whose kernels they run.
FRAMEWORK_ALIASES = {"megatron-lm": "megatron", "megatron-bridge": "nemo"}
