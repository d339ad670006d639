"""Section 5, how to parallelise a Transformer for training."""

from __future__ import annotations

from shardwise.arrays import Num
from shardwise.book.givens import UNIT_DIM, chip, column, dense, given_chip, torus_chip
from shardwise.book.registry import Answer, Given, solves
from shardwise.estimate.chip_memory import Memory
from shardwise.formulas import memory, peaks, thresholds
from shardwise.formulas.blocks import block_cost
from shardwise.formulas.flops import compute_s
from shardwise.formulas.roofline import math_s, transfer_s
from shardwise.formulas.thresholds import alpha
from shardwise.hardware import System, Torus
from shardwise.models import ModelConfig, count
from shardwise.ops.notation import parse_einsum
from shardwise.ops.sharded import derive
from shardwise.strategy.mesh import Mesh
from shardwise.units import DAY


def _two_matrices(g: Given) -> ModelConfig:
    """The layer of this chapter: two matrices of [D,F]."""
    return dense({"D": g["D"], "F": g["F"]}, gated=False)


@solves("training-alpha", formula="alpha = C / W_ici")
def alpha_by_chip(g: Given) -> Answer:
    answers = []
    for peak, bandwidth in zip(g["peak"], g["ici_bidi"], strict=True):
        answers.append(alpha(torus_chip("v5p", peak, bandwidth)))
    return answers


@solves("training-dp-threshold", formula="B/X > alpha / n_ax")
def data_parallel_threshold(g: Given) -> Answer:
    tokens_per_chip = thresholds.data_parallel_tokens(
        alpha(given_chip(g)), n_axes=column(g["axes"])
    )
    return [*tokens_per_chip, tokens_per_chip[-1] * g["pod"]]


@solves("training-dp-times", formula="T_math = 8BDF / (XC), T_comms = 8DF / W_ici")
def data_parallel_times(g: Given) -> Answer:
    backward = block_cost(_two_matrices(g), g["B"], Mesh(data=g["X"]))["backward"]
    return [
        math_s(backward.flops, g["peak_flops_per_s"]),
        transfer_s(backward.bytes, g["ici_bidi_bytes_per_s"]),
    ]


@solves("training-adam-limit", formula="P = HBM / 10")
def adam_limit(g: Given) -> Answer:
    return memory.parameters_that_fit(g["hbm_bytes"], g["bytes_per_param"])


@solves("training-fsdp-same-threshold", formula="4BDF/(XC) / (4DF/W_ici)")
def fsdp_ratio(g: Given) -> Answer:
    shards = 64
    mesh = Mesh(fsdp=shards)
    forward = block_cost(_two_matrices(g), shards * g["tokens_per_chip"], mesh)["forward"]
    compute_time_s = math_s(forward.flops, g["peak_flops_per_s"])
    return compute_time_s / transfer_s(forward.bytes, g["ici_bidi_bytes_per_s"])


@solves("training-deepseek-v2-chips", formula="N = B / 850; pods of 8960")
def chips_and_pods(g: Given) -> Answer:
    chips = thresholds.max_chips(g["batch"], g["tokens_per_chip"])
    return [chips, chips / g["pod"]]


@solves("training-llama-16m", formula="N = B / 850; T = FLOPs / (N C MFU)")
def chips_and_days(g: Given) -> Answer:
    chips = thresholds.max_chips(g["batch"], g["tokens_per_chip"])
    seconds = compute_s(g["total_flops"], chips, g["peak_flops_per_s"], g["mfu"])
    return [chips, seconds / DAY]


@solves("training-tp-limit", formula="Y < F / alpha")
def tensor_limits(g: Given) -> Answer:
    return thresholds.tensor_limit(column(g["F"]), alpha(given_chip(g)))


@solves("training-tp-required-f", formula="F > Y alpha")
def required_d_ff(g: Given) -> Answer:
    return thresholds.tensor_width(g["Y"], column([g["alpha_v5p"], g["alpha_v4p"]]))


@solves("training-tp-int8", formula="Y < 2F / (e alpha), e bytes per activation")
def tensor_limits_by_dtype(g: Given) -> Answer:
    int8_alpha = alpha(torus_chip(g["chip"], g["int8_peak"], g["ici_bidi_bytes_per_s"]))
    bf16_limit = thresholds.tensor_limit(g["F"], alpha(given_chip(g)))
    int8_limit = thresholds.tensor_limit(g["F"], int8_alpha, element_bytes=1)
    return [int8_alpha, bf16_limit, int8_limit]


@solves("training-mixed-threshold-sum", formula="B/N > 4 alpha^2 / (Mx My F)")
def fsdp_and_tensor_threshold(g: Given) -> Answer:
    return thresholds.mixed_tokens(
        alpha(given_chip(g)), g["F"], axes=g["MxMy"], overlap=g["overlap"]
    )


def _fsdp_and_tensor_tokens(g: Given) -> Num:
    """Tokens per chip from which FSDP with tensor parallelism is compute-bound.

    The first value assumes that the two communications run one after the other, the second that
    they overlap.
    """
    limits = [
        thresholds.mixed_tokens(alpha(given_chip(g)), g["F"], axes=g["MxMy"], overlap=overlap)
        for overlap in (False, True)
    ]
    return column(limits)


@solves(
    "training-mixed-gain",
    formula="(alpha/3) / (4 alpha^2 / (Mx My F)); (alpha/3) / (alpha^2 / (Mx My F))",
)
def fsdp_and_tensor_gain(g: Given) -> Answer:
    return g["fsdp"] / _fsdp_and_tensor_tokens(g)


@solves(
    "training-mixed-figure-batch",
    formula="B = N * 4 alpha^2 / (Mx My F); B = N * alpha^2 / (Mx My F)",
)
def fsdp_and_tensor_batch(g: Given) -> Answer:
    return g["N"] * _fsdp_and_tensor_tokens(g)


@solves("training-mixed-scaling-exponent", formula="T_math / T_comms at X_opt grows as sqrt(B)")
def compute_to_comms_growth(g: Given) -> Answer:
    return _compute_to_comms(g["batch_factor"] * 1e6) / _compute_to_comms(1e6)


def _compute_to_comms(tokens: float) -> float:
    """T_math / T_comms of FSDP with tensor parallelism at the best split of 4,096 v5p."""
    d_ff = 32768
    n_chips = 4096
    fsdp = thresholds.best_fsdp(n_chips, tokens, d_ff)
    times = thresholds.mixed_times(
        tokens,
        8192,
        d_ff,
        fsdp=fsdp,
        tensor=n_chips / fsdp,
        flops_per_s=4.59e14,
        ici_bytes_per_s=1.8e11,
    )
    return float(times.math_s / times.comms_s)


@solves("training-table-compute", formula="(4 + 8)BDF / X, / Y, / (XY)")
def layer_flops(g: Given) -> Answer:
    meshes = (
        Mesh(data=g["X"]),
        Mesh(tensor=g["Y"]),
        Mesh(fsdp=g["X"], tensor=g["Y"]),
    )
    answers = []
    for mesh in meshes:
        phases = block_cost(_two_matrices(g), g["B"], mesh)
        answers.append(phases["forward"].flops + phases["backward"].flops)
    return answers


@solves("training-table-comms", formula="8DF; 4DF + 8DF; 4BD + 4BD")
def layer_bytes(g: Given) -> Answer:
    meshes = {"dp": Mesh(data=16), "fsdp": Mesh(fsdp=16), "tp": Mesh(tensor=4)}
    n_bytes = {}
    for name, mesh in meshes.items():
        phases = block_cost(_two_matrices(g), g["B"], mesh)
        n_bytes[name] = phases["forward"].bytes + phases["backward"].bytes
    return n_bytes


@solves("training-dcn-feb", formula="B per pod > C_pod / W_dcn,pod")
def dcn_batch(g: Given) -> Answer:
    pod = chip("v5p", peak__bf16=g["pod_flops"], dcn__bandwidth=g["pod_dcn"])
    return thresholds.data_parallel_tokens(alpha(pod, "dcn"))


@solves("training-fsdp-2m", formula="N = B / 850")
def chips_2m(g: Given) -> Answer:
    return thresholds.max_chips(g["batch"], g["tokens_per_chip"])


@solves("training-mixed-2m-feb", formula="B/N = 4 alpha^2 / (Mx My F); N = B / (B/N)")
def chips_mixed_sum(g: Given) -> Answer:
    tokens_per_chip = _fsdp_and_tensor_tokens(g)[0]
    n_chips = thresholds.max_chips(column(g["batch"]), tokens_per_chip)
    return [tokens_per_chip, *n_chips]


@solves("training-mixed-2m-later", formula="B/N = alpha^2 / (Mx My F); N = B / (B/N)")
def chips_mixed_overlap(g: Given) -> Answer:
    tokens_per_chip = _fsdp_and_tensor_tokens(g)[1]
    return [tokens_per_chip, thresholds.max_chips(g["batch"], tokens_per_chip)]


@solves("training-ten-pods", formula="T = FLOPs / (N C MFU)")
def ten_pods(g: Given) -> Answer:
    mfu = column([1.0, 0.4])
    times = compute_s(g["total_flops"], g["chips"], g["peak_flops_per_s"], mfu)
    return [g["chips"], *(times / DAY)]


@solves("training-two-pod-batch", formula="B / N", uses_library=False)
def tokens_per_chip(g: Given) -> Answer:
    return g["batch"] / g["chips"]


@solves("training-q1-params", formula="3DFL, 2D(N+K)HL, 2VD")
def llama2_13b(g: Given) -> Answer:
    parts = count.parameters(dense(g))
    return {
        "ffw": parts.mlp,
        "attn": parts.attention,
        "vocab": parts.embedding + parts.unembedding,
        "total": parts.total,
    }


@solves("training-q2-memory", formula="10P; 2BL(D + 2F)")
def state_and_activations(g: Given) -> Answer:
    widths = [g["D"], g["F"], g["F"]]
    activation_bytes = memory.saved_bytes(g["tokens"], g["L"], widths, g["bytes_per_elem"])
    return [g["params"] * g["bytes_per_param"], activation_bytes]


@solves("training-q3-hbm-seqs", formula="B / length; N HBM")
def sequences_and_memory(g: Given) -> Answer:
    v5p = chip("v5p", hbm__capacity=g["hbm_bytes"])
    torus = Torus(shape=(g["chips"],), wrapped=(True,))
    totals = peaks.totals(System(name="slice", chip=v5p, topology=torus))
    return [g["tokens"] / g["seq_len"], totals.hbm_bytes]


@solves("training-q3-pure-dp", formula="10P <= HBM")
def data_parallel_fits(g: Given) -> Answer:
    return Memory(weights=g["state_bytes"], capacity=g["hbm_bytes"]).fits


@solves("training-appendix-dwin", formula="dW_in[D,F] = In[B,D] . dTmp[B,F]")
def weight_gradient(g: Given) -> Answer:
    _, d_weight = parse_einsum("In[B,D] . W_in[D,F] -> Tmp[B,F]").gradients()
    return next(array.name for array in d_weight.inputs if array.name != "dTmp")


@solves("training-zero-equal-comm", formula="RS + AG of 2DF each, twice; ZeRO-3 backward AG + RS")
def zero_stage_bytes(g: Given) -> Answer:
    """Bytes of ZeRO-1 and of the backward pass of ZeRO-3, relative to plain data parallelism."""
    model = _two_matrices(g)
    tokens = 2**20
    all_reduce_bytes = block_cost(model, tokens, Mesh(data=16))["backward"].bytes
    zero3_bytes = block_cost(model, tokens, Mesh(fsdp=16))["backward"].bytes
    return [_zero1_bytes(g) / all_reduce_bytes, zero3_bytes / all_reduce_bytes]


def _zero1_bytes(g: Given) -> float:
    """Bytes that ZeRO-1 moves for the two matrices of a layer.

    A reduce-scatter of the gradients, and an all-gather of the updated weights.
    """
    scatters = derive(parse_einsum("In[B_X,D] . dTmp[B_X,F] -> dW[D_X,F]")).moves
    gathers = derive(parse_einsum("In[B_X,D] . W[D_X,F] -> Tmp[B_X,F]")).moves
    dims = {"B": UNIT_DIM, "D": g["D"], "F": g["F"]}
    matrix_bytes = 0.0
    for collective in (*scatters, *gathers):
        if collective.kind != "slice":
            matrix_bytes += float(collective.joined_bytes(dims, {"X": 16}, 2))
    return 2 * matrix_bytes
