"""Section 5, how to parallelise a Transformer for training."""

from __future__ import annotations

from shardwise.book.givens import SIDE, axis, chip, dense
from shardwise.book.registry import Answer, Given, solves
from shardwise.estimate.chip_memory import Memory
from shardwise.formulas import memory, peaks, thresholds
from shardwise.formulas.blocks import block_cost
from shardwise.formulas.flops import compute_s
from shardwise.formulas.roofline import Bounds, math_s, transfer_s
from shardwise.formulas.thresholds import alpha
from shardwise.hardware import System, Torus
from shardwise.models import ModelConfig, count
from shardwise.ops.notation import parse_einsum
from shardwise.ops.sharded import derive
from shardwise.strategy.mesh import Mesh
from shardwise.units import DAY


def _alpha(g: Given) -> float:
    return alpha(axis(g["chip"], g["peak_flops_per_s"], g["ici_bidi_bytes_per_s"]))


def _two_matrices(g: Given) -> ModelConfig:
    """The layer of this chapter: two matrices of [D,F]."""
    return dense({"D": g["D"], "F": g["F"]}, gated=False)


@solves("training-alpha", by="alpha = C / W_ici")
def alphas(g: Given) -> Answer:
    pairs = zip(g["peak"], g["ici_bidi"], strict=True)
    return [alpha(axis("v5p", peak, bandwidth)) for peak, bandwidth in pairs]


@solves("training-dp-threshold", by="B/X > alpha / n_ax")
def data_parallel(g: Given) -> Answer:
    per_chip = [thresholds.data_parallel_tokens(_alpha(g), n_axes=n) for n in g["axes"]]
    return [*per_chip, per_chip[-1] * g["pod"]]


@solves("training-dp-times", by="T_math = 8BDF / (XC), T_comms = 8DF / W_ici")
def data_parallel_times(g: Given) -> Answer:
    backward = block_cost(_two_matrices(g), g["B"], Mesh(data=g["X"]))["backward"]
    return [
        math_s(backward.flops, g["peak_flops_per_s"]),
        transfer_s(backward.bytes, g["ici_bidi_bytes_per_s"]),
    ]


@solves("training-adam-limit", by="P = HBM / 10")
def adam_limit(g: Given) -> Answer:
    return memory.parameters_that_fit(g["hbm_bytes"], g["bytes_per_param"])


@solves("training-fsdp-same-threshold", by="4BDF/(XC) / (4DF/W_ici)")
def fsdp_ratio(g: Given) -> Answer:
    shards = 64
    mesh = Mesh(fsdp=shards)
    forward = block_cost(_two_matrices(g), shards * g["tokens_per_chip"], mesh)["forward"]
    both = Bounds(
        math_s(forward.flops, g["peak_flops_per_s"]),
        transfer_s(forward.bytes, g["ici_bidi_bytes_per_s"]),
    )
    return both.math_s / both.comms_s


@solves("training-deepseek-v2-chips", by="N = B / 850; pods of 8960")
def chips_and_pods(g: Given) -> Answer:
    chips = thresholds.max_chips(g["batch"], g["tokens_per_chip"])
    return [chips, chips / g["pod"]]


@solves("training-llama-16m", by="N = B / 850; T = FLOPs / (N C MFU)")
def chips_and_days(g: Given) -> Answer:
    chips = thresholds.max_chips(g["batch"], g["tokens_per_chip"])
    seconds = compute_s(g["total_flops"], chips, g["peak_flops_per_s"], g["mfu"])
    return [chips, seconds / DAY]


@solves("training-tp-limit", by="Y < F / alpha")
def tensor_limits(g: Given) -> Answer:
    return [thresholds.tensor_limit(f, _alpha(g)) for f in g["F"]]


@solves("training-tp-required-f", by="F > Y alpha")
def tensor_widths(g: Given) -> Answer:
    return [thresholds.tensor_width(g["Y"], g[f"alpha_{c}"]) for c in ("v5p", "v4p")]


@solves("training-tp-int8", by="Y < 2F / (e alpha), e bytes per activation")
def tensor_int8(g: Given) -> Answer:
    int8 = alpha(axis(g["chip"], g["int8_peak"], g["ici_bidi_bytes_per_s"]))
    in_int8 = thresholds.tensor_limit(g["F"], int8, element_bytes=1)
    return [int8, thresholds.tensor_limit(g["F"], _alpha(g)), in_int8]


@solves("training-mixed-threshold-sum", by="B/N > 4 alpha^2 / (Mx My F)")
def mixed_sum(g: Given) -> Answer:
    return thresholds.mixed_tokens(_alpha(g), g["F"], axes=g["MxMy"], overlap=g["overlap"])


def _mixed(g: Given) -> list[float]:
    """Tokens per chip by the sum rule and by the overlap rule."""
    rules = (False, True)
    return [thresholds.mixed_tokens(_alpha(g), g["F"], axes=g["MxMy"], overlap=o) for o in rules]


@solves("training-mixed-gain", by="(alpha/3) / (4 alpha^2 / (Mx My F)), and without the 4")
def mixed_gain(g: Given) -> Answer:
    return [g["fsdp"] / tokens for tokens in _mixed(g)]


@solves("training-mixed-figure-batch", by="B = N * 4 alpha^2 / (Mx My F), and without the 4")
def mixed_batch(g: Given) -> Answer:
    return [g["N"] * tokens for tokens in _mixed(g)]


@solves("training-mixed-scaling-exponent", by="T_math / T_comms at X_opt grows as sqrt(B)")
def mixed_growth(g: Given) -> Answer:
    few, many = (_mixed_ratio(tokens) for tokens in (1e6, g["batch_factor"] * 1e6))
    return many / few


def _mixed_ratio(tokens: float) -> float:
    D, F, chips = 8192, 32768, 4096
    fsdp = thresholds.best_fsdp(chips, tokens, F)
    times = thresholds.mixed_times(
        tokens, D, F, fsdp=fsdp, tensor=chips / fsdp, flops_per_s=4.59e14, ici_bytes_per_s=1.8e11
    )
    return float(times.math_s / times.comms_s)


@solves("training-table-compute", by="(4 + 8)BDF / X, / Y, / (XY)")
def layer_flops(g: Given) -> Answer:
    meshes = (
        Mesh(data=g["X"]),
        Mesh(tensor=g["Y"]),
        Mesh(fsdp=g["X"], tensor=g["Y"]),
    )
    costs = [block_cost(_two_matrices(g), g["B"], mesh) for mesh in meshes]
    return [sum(phase.flops for phase in cost.values()) for cost in costs]


@solves("training-table-comms", by="8DF; 4DF + 8DF; 4BD + 4BD")
def layer_bytes(g: Given) -> Answer:
    meshes = {"dp": Mesh(data=16), "fsdp": Mesh(fsdp=16), "tp": Mesh(tensor=4)}
    return {
        name: sum(p.bytes for p in block_cost(_two_matrices(g), g["B"], mesh).values())
        for name, mesh in meshes.items()
    }


@solves("training-dcn-feb", by="B per pod > C_pod / W_dcn,pod")
def dcn_batch(g: Given) -> Answer:
    pod = chip("v5p", peak__bf16=g["pod_flops"], dcn__bandwidth=g["pod_dcn"])
    return thresholds.data_parallel_tokens(alpha(pod, "dcn"))


@solves("training-fsdp-2m", by="N = B / 850")
def chips_2m(g: Given) -> Answer:
    return thresholds.max_chips(g["batch"], g["tokens_per_chip"])


@solves("training-mixed-2m-feb", by="B/N = 4 alpha^2 / (Mx My F); N = B / (B/N)")
def chips_mixed_sum(g: Given) -> Answer:
    per_chip = _mixed(g)[0]
    return [per_chip, *(thresholds.max_chips(batch, per_chip) for batch in g["batch"])]


@solves("training-mixed-2m-later", by="B/N = alpha^2 / (Mx My F); N = B / (B/N)")
def chips_mixed_overlap(g: Given) -> Answer:
    per_chip = _mixed(g)[1]
    return [per_chip, thresholds.max_chips(g["batch"], per_chip)]


@solves("training-ten-pods", by="T = FLOPs / (N C MFU)")
def ten_pods(g: Given) -> Answer:
    times = [
        compute_s(g["total_flops"], g["chips"], g["peak_flops_per_s"], mfu) for mfu in (1.0, 0.4)
    ]
    return [g["chips"], *(t / DAY for t in times)]


@solves("training-two-pod-batch", by="B / N", library=False)
def tokens_per_chip(g: Given) -> Answer:
    return g["batch"] / g["chips"]


@solves("training-q1-params", by="3DFL, 2D(N+K)HL, 2VD")
def llama2_13b(g: Given) -> Answer:
    parts = count.parameters(dense(g))
    return {
        "ffw": parts.mlp,
        "attn": parts.attention,
        "vocab": parts.embedding + parts.unembedding,
        "total": parts.total,
    }


@solves("training-q2-memory", by="10P; 2BL(D + 2F)")
def state_and_activations(g: Given) -> Answer:
    widths = [g["D"], g["F"], g["F"]]
    saved = memory.saved_bytes(g["tokens"], g["L"], widths, g["bytes_per_elem"])
    return [g["params"] * g["bytes_per_param"], saved]


@solves("training-q3-hbm-seqs", by="B / length; N HBM")
def sequences_and_memory(g: Given) -> Answer:
    made = chip("v5p", hbm__capacity=g["hbm_bytes"])
    torus = Torus(shape=(g["chips"],), wrapped=(True,))
    machine = peaks.totals(System(name="slice", chip=made, topology=torus))
    return [g["tokens"] / g["seq_len"], machine.hbm_bytes]


@solves("training-q3-pure-dp", by="10P <= HBM")
def pure_data_parallel(g: Given) -> Answer:
    return Memory(weights=g["state_bytes"], capacity=g["hbm_bytes"]).fits


@solves("training-appendix-dwin", by="dW_in[D,F] = In[B,D] . dTmp[B,F]")
def weight_gradient(g: Given) -> Answer:
    _, d_weight = parse_einsum("In[B,D] . W_in[D,F] -> Tmp[B,F]").gradients()
    return next(a.name for a in d_weight.inputs if a.name != "dTmp")


@solves("training-zero-equal-comm", by="RS + AG of 2DF each, twice; ZeRO-3 backward AG + RS")
def zero_levels(g: Given) -> Answer:
    model, tokens = _two_matrices(g), 2**20
    plain = block_cost(model, tokens, Mesh(data=16))["backward"].bytes
    sharded = block_cost(model, tokens, Mesh(fsdp=16))["backward"].bytes
    return [_zero1_bytes(g) / plain, sharded / plain]


def _zero1_bytes(g: Given) -> float:
    """Gradients scattered to the shard that updates them, new weights gathered; two matrices."""
    scatter = derive(parse_einsum("In[B_X,D] . dTmp[B_X,F] -> dW[D_X,F]")).moves
    gather = derive(parse_einsum("In[B_X,D] . W[D_X,F] -> Tmp[B_X,F]")).moves
    dims = {"B": SIDE, "D": g["D"], "F": g["F"]}
    moves = [m for m in (*scatter, *gather) if m.kind != "slice"]
    return 2 * sum(float(m.joined_bytes(dims, {"X": 16}, 2)) for m in moves)
