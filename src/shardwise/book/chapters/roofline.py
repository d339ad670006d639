"""Section 1, all about rooflines."""

from __future__ import annotations

from shardwise.book.givens import column, dtype
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import roofline, thresholds
from shardwise.workload import Train


@solves("roofline-h100-1e12", "roofline-v6e-1e12", formula="T_math = FLOPs / C")
def peak_time(g: Given) -> Answer:
    return roofline.math_s(g["flops"], g["peak_flops_per_s"])


@solves("roofline-v5e-intensity", formula="I_crit = C / W_hbm")
def hbm_intensity(g: Given) -> Answer:
    return roofline.critical_intensity(g["peak_flops_per_s"], g["hbm_bytes_per_s"])


@solves("roofline-v5e-intensity-measured-bw-variants", formula="I_crit = C / W_hbm")
def hbm_intensities(g: Given) -> Answer:
    return roofline.critical_intensity(g["peak_flops_per_s"], column(g["hbm_bytes_per_s"]))


@solves("roofline-vpu-critical-intensity", formula="I_crit = C_vpu / W_hbm")
def vector_intensity(g: Given) -> Answer:
    return roofline.critical_intensity(g["vpu_flops_per_s"], g["hbm_bytes_per_s"])


@solves("roofline-2chip-net-intensity", formula="I_crit = C / W1, one direction of a link")
def link_intensity(g: Given) -> Answer:
    return thresholds.split_contraction_width(1, g["peak_flops_per_s"], g["link_bytes_per_s"])


@solves("roofline-dot-intensity", formula="I = (2N-1) / (4N+2)")
def dot_product(g: Given) -> Answer:
    return roofline.dot_intensity(column(g["N"]))


@solves("roofline-max-vs-sum", formula="(T_math + T_comms) / max(T_math, T_comms)")
def overlap_gain(g: Given) -> Answer:
    math_s, comms_s = column(g["pairs"])
    bounds = roofline.Bounds(math_s, comms_s)
    return bounds.upper / bounds.lower


@solves("roofline-matmul-intensity-exact", formula="I = 2BDF / e(BD + DF + BF)")
def exact_intensity(g: Given) -> Answer:
    e = g["bytes_per_elem"]
    matmul = roofline.Matmul(B=g["B"], D=g["D"], F=g["F"], a_bytes=e, w_bytes=e, out_bytes=e)
    return matmul.intensity


@solves(
    "roofline-bcrit-v5e-bf16", "roofline-q2-mixed-precision", formula="B_crit = C / W_hbm * e_w / 2"
)
def critical_batch(g: Given) -> Answer:
    weights = dtype(g["weight_bytes"])
    return roofline.critical_batch(g["peak_flops_per_s"], g["hbm_bytes_per_s"], weights)


@solves(
    "roofline-q1-bcrit-feb", "roofline-q1-bcrit-later", formula="B_crit = C_int8 / W_hbm * e_w / 2"
)
def critical_batch_int8(g: Given) -> Answer:
    weights = dtype(g["weight_bytes"])
    return roofline.critical_batch(g["peak_ops_per_s"], g["hbm_bytes_per_s"], weights)


@solves("roofline-q5-h100-feb", "roofline-q5-h100-later", formula="B_crit = C / W_hbm * e_w / 2")
def critical_batch_h100(g: Given) -> Answer:
    return roofline.critical_batch(g["peak_flops_per_s"], g["hbm_bytes_per_s"])


@solves("roofline-q1-bytes-ops", formula="loads e(BD + DF), writes e BF, does 2BDF")
def bytes_and_ops(g: Given) -> Answer:
    e = g["bytes_per_elem"]
    matmul = roofline.Matmul(B=g["B"], D=g["D"], F=g["F"], a_bytes=e, w_bytes=e, out_bytes=e)
    return {"loaded": matmul.loaded_bytes, "written": matmul.written_bytes, "ops": matmul.flops}


@solves("roofline-local-batch", formula="B = sequences * length; B / N")
def local_batch(g: Given) -> Answer:
    tokens = Train(batch=g["sequences"], seq=g["seq_len"]).tokens_per_step
    return [tokens, tokens / g["chips"]]
