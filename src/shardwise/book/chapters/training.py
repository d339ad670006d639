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


def _two_matrices(given: Given) -> ModelConfig:
    """The layer of this chapter: an MLP of two matrices, [D,F] and [F,D]."""
    return dense({"D": given["D"], "F": given["F"]}, gated=False)


@solves("training-alpha", formula="alpha = C / W_ici")
def alpha_by_chip(given: Given) -> Answer:
    answers = []
    for peak, bandwidth in zip(given["peak"], given["ici_bidi"], strict=True):
        answers.append(alpha(torus_chip("v5p", peak, bandwidth)))
    return answers


@solves("training-dp-threshold", formula="B/X > alpha / n_ax")
def data_parallel_threshold(given: Given) -> Answer:
    tokens_per_chip = thresholds.data_parallel_tokens(
        alpha(given_chip(given)), n_axes=column(given["axes"])
    )
    return [*tokens_per_chip, tokens_per_chip[-1] * given["pod"]]


@solves("training-dp-times", formula="T_math = 8BDF / (XC), T_comms = 8DF / W_ici")
def data_parallel_times(given: Given) -> Answer:
    backward = block_cost(_two_matrices(given), given["B"], Mesh(data=given["X"]))["backward"]
    return [
        math_s(backward.flops, given["peak_flops_per_s"]),
        transfer_s(backward.bytes, given["ici_bidi_bytes_per_s"]),
    ]


@solves("training-adam-limit", formula="P = HBM / 10")
def adam_limit(given: Given) -> Answer:
    return memory.parameters_that_fit(given["hbm_bytes"], given["bytes_per_param"])


@solves("training-fsdp-same-threshold", formula="4BDF/(XC) / (4DF/W_ici)")
def fsdp_ratio(given: Given) -> Answer:
    shards = 64
    mesh = Mesh(fsdp=shards)
    forward = block_cost(_two_matrices(given), shards * given["tokens_per_chip"], mesh)["forward"]
    compute_time_s = math_s(forward.flops, given["peak_flops_per_s"])
    return compute_time_s / transfer_s(forward.bytes, given["ici_bidi_bytes_per_s"])


@solves("training-deepseek-v2-chips", formula="N = B / 850; pods of 8960")
def chips_and_pods(given: Given) -> Answer:
    n_chips = thresholds.max_chips(given["batch"], given["tokens_per_chip"])
    return [n_chips, n_chips / given["pod"]]


@solves("training-llama-16m", formula="N = B / 850; T = FLOPs / (N C MFU)")
def chips_and_days(given: Given) -> Answer:
    n_chips = thresholds.max_chips(given["batch"], given["tokens_per_chip"])
    seconds = compute_s(given["total_flops"], n_chips, given["peak_flops_per_s"], given["mfu"])
    return [n_chips, seconds / DAY]


@solves("training-tp-limit", formula="Y < F / alpha")
def tensor_limits(given: Given) -> Answer:
    return thresholds.tensor_limit(column(given["F"]), alpha(given_chip(given)))


@solves("training-tp-required-f", formula="F > Y alpha")
def required_d_ff(given: Given) -> Answer:
    return thresholds.tensor_width(given["Y"], column([given["alpha_v5p"], given["alpha_v4p"]]))


@solves("training-tp-int8", formula="Y < 2F / (e alpha), e bytes per activation")
def tensor_limits_by_dtype(given: Given) -> Answer:
    int8_alpha = alpha(torus_chip(given["chip"], given["int8_peak"], given["ici_bidi_bytes_per_s"]))
    bf16_limit = thresholds.tensor_limit(given["F"], alpha(given_chip(given)))
    int8_limit = thresholds.tensor_limit(given["F"], int8_alpha, element_bytes=1)
    return [int8_alpha, bf16_limit, int8_limit]


@solves("training-mixed-threshold-sum", formula="B/N > 4 alpha^2 / (Mx My F)")
def fsdp_and_tensor_threshold(given: Given) -> Answer:
    return thresholds.mixed_tokens(
        alpha(given_chip(given)), given["F"], axes=given["MxMy"], overlap=given["overlap"]
    )


def _fsdp_and_tensor_tokens(given: Given) -> Num:
    """Tokens per chip above which FSDP with tensor parallelism is compute-bound.

    The first value assumes that the communication of FSDP and that of tensor parallelism run one
    after the other, the second that they overlap.
    """
    limits = [
        thresholds.mixed_tokens(
            alpha(given_chip(given)), given["F"], axes=given["MxMy"], overlap=overlap
        )
        for overlap in (False, True)
    ]
    return column(limits)


@solves(
    "training-mixed-gain",
    formula="(alpha/3) / (4 alpha^2 / (Mx My F)); (alpha/3) / (alpha^2 / (Mx My F))",
)
def fsdp_and_tensor_gain(given: Given) -> Answer:
    return given["fsdp"] / _fsdp_and_tensor_tokens(given)


@solves(
    "training-mixed-figure-batch",
    formula="B = N * 4 alpha^2 / (Mx My F); B = N * alpha^2 / (Mx My F)",
)
def fsdp_and_tensor_batch(given: Given) -> Answer:
    return given["N"] * _fsdp_and_tensor_tokens(given)


@solves("training-mixed-scaling-exponent", formula="T_math / T_comms at X_opt grows as sqrt(B)")
def compute_to_comms_growth(given: Given) -> Answer:
    return _compute_to_comms(given["batch_factor"] * 1e6) / _compute_to_comms(1e6)


def _compute_to_comms(tokens: float) -> float:
    """T_math / T_comms of FSDP with tensor parallelism at the best split of 4,096 v5p chips."""
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


@solves("training-table-compute", formula="12BDF / X; 12BDF / Y; 12BDF / (XY)")
def layer_flops(given: Given) -> Answer:
    meshes = (
        Mesh(data=given["X"]),
        Mesh(tensor=given["Y"]),
        Mesh(fsdp=given["X"], tensor=given["Y"]),
    )
    answers = []
    for mesh in meshes:
        phases = block_cost(_two_matrices(given), given["B"], mesh)
        answers.append(phases["forward"].flops + phases["backward"].flops)
    return answers


@solves("training-table-comms", formula="8DF; 4DF + 8DF; 4BD + 4BD")
def layer_bytes(given: Given) -> Answer:
    meshes = {"dp": Mesh(data=16), "fsdp": Mesh(fsdp=16), "tp": Mesh(tensor=4)}
    n_bytes = {}
    for name, mesh in meshes.items():
        phases = block_cost(_two_matrices(given), given["B"], mesh)
        n_bytes[name] = phases["forward"].bytes + phases["backward"].bytes
    return n_bytes


@solves("training-dcn-feb", formula="B per pod > C_pod / W_dcn,pod")
def dcn_batch(given: Given) -> Answer:
    v5p_pod = chip("v5p", peak__bf16=given["pod_flops"], dcn__bandwidth=given["pod_dcn"])
    return thresholds.data_parallel_tokens(alpha(v5p_pod, "dcn"))


@solves("training-fsdp-2m", formula="N = B / 850")
def chips_for_2m_tokens(given: Given) -> Answer:
    return thresholds.max_chips(given["batch"], given["tokens_per_chip"])


@solves("training-mixed-2m-feb", formula="b = 4 alpha^2 / (Mx My F) tokens per chip; N = B / b")
def chips_without_overlap(given: Given) -> Answer:
    tokens_per_chip = _fsdp_and_tensor_tokens(given)[0]
    n_chips = thresholds.max_chips(column(given["batch"]), tokens_per_chip)
    return [tokens_per_chip, *n_chips]


@solves("training-mixed-2m-later", formula="b = alpha^2 / (Mx My F) tokens per chip; N = B / b")
def chips_with_overlap(given: Given) -> Answer:
    tokens_per_chip = _fsdp_and_tensor_tokens(given)[1]
    return [tokens_per_chip, thresholds.max_chips(given["batch"], tokens_per_chip)]


@solves("training-ten-pods", formula="T = FLOPs / (N C MFU)")
def days_on_ten_pods(given: Given) -> Answer:
    mfu = column([1.0, 0.4])
    times = compute_s(given["total_flops"], given["chips"], given["peak_flops_per_s"], mfu)
    return [given["chips"], *(times / DAY)]


@solves("training-two-pod-batch", formula="B / N", uses_library=False)
def tokens_per_chip(given: Given) -> Answer:
    return given["batch"] / given["chips"]


@solves("training-q1-params", formula="3DFL, 2D(N+K)HL, 2VD")
def llama2_13b_parameters(given: Given) -> Answer:
    parts = count.parameters(dense(given))
    return {
        "ffw": parts.mlp,
        "attn": parts.attention,
        "vocab": parts.embedding + parts.unembedding,
        "total": parts.total,
    }


@solves("training-q2-memory", formula="10P; 2BL(D + 2F)")
def state_and_activations(given: Given) -> Answer:
    widths = [given["D"], given["F"], given["F"]]
    activation_bytes = memory.saved_bytes(
        given["tokens"], given["L"], widths, given["bytes_per_elem"]
    )
    return [given["params"] * given["bytes_per_param"], activation_bytes]


@solves("training-q3-hbm-seqs", formula="B / length; N HBM")
def sequences_and_memory(given: Given) -> Answer:
    v5p = chip("v5p", hbm__capacity=given["hbm_bytes"])
    torus = Torus(shape=(given["chips"],), wrapped=(True,))
    totals = peaks.totals(System(name="slice", chip=v5p, topology=torus))
    return [given["tokens"] / given["seq_len"], totals.hbm_bytes]


@solves("training-q3-pure-dp", formula="10P <= HBM")
def data_parallel_fits(given: Given) -> Answer:
    return Memory(weights=given["state_bytes"], capacity=given["hbm_bytes"]).fits


@solves("training-appendix-dwin", formula="dW_in[D,F] = In[B,D] . dTmp[B,F]")
def operand_of_weight_gradient(given: Given) -> Answer:
    _, d_weight = parse_einsum("In[B,D] . W_in[D,F] -> Tmp[B,F]").gradients()
    return next(array.name for array in d_weight.inputs if array.name != "dTmp")


@solves(
    "training-zero-equal-comm",
    formula="2 matrices * (ReduceScatter + AllGather) of 2DF bytes, in both cases",
)
def zero_stage_bytes(given: Given) -> Answer:
    """Bytes of ZeRO-1 and of the backward pass of ZeRO-3, relative to plain data parallelism."""
    model = _two_matrices(given)
    tokens = 2**20
    all_reduce_bytes = block_cost(model, tokens, Mesh(data=16))["backward"].bytes
    zero3_bytes = block_cost(model, tokens, Mesh(fsdp=16))["backward"].bytes
    return [_zero1_bytes(given) / all_reduce_bytes, zero3_bytes / all_reduce_bytes]


def _zero1_bytes(given: Given) -> float:
    """Bytes that ZeRO-1 moves for the two matrices of a layer.

    It reduce-scatters the gradients and gathers the updated weights.
    """
    scatters = derive(parse_einsum("In[B_X,D] . dTmp[B_X,F] -> dW[D_X,F]")).moves
    gathers = derive(parse_einsum("In[B_X,D] . W[D_X,F] -> Tmp[B_X,F]")).moves
    dims = {"B": UNIT_DIM, "D": given["D"], "F": given["F"]}
    matrix_bytes = 0.0
    for collective in (*scatters, *gathers):
        if collective.kind != "slice":
            matrix_bytes += float(collective.joined_bytes(dims, {"X": 16}, 2))
    return 2 * matrix_bytes
