"""Section 1, all about rooflines."""

from __future__ import annotations

from shardwise.book.givens import column, dtype
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import roofline, thresholds
from shardwise.workload import Train


@solves("roofline-h100-1e12", "roofline-v6e-1e12", formula="T_math = FLOPs / C")
def peak_time(given: Given) -> Answer:
    return roofline.math_s(given["flops"], given["peak_flops_per_s"])


@solves("roofline-v5e-intensity", formula="I_crit = C / W_hbm")
def hbm_intensity(given: Given) -> Answer:
    return roofline.critical_intensity(given["peak_flops_per_s"], given["hbm_bytes_per_s"])


@solves("roofline-v5e-intensity-measured-bw-variants", formula="I_crit = C / W_hbm")
def hbm_intensities(given: Given) -> Answer:
    return roofline.critical_intensity(given["peak_flops_per_s"], column(given["hbm_bytes_per_s"]))


@solves("roofline-vpu-critical-intensity", formula="I_crit = C_vpu / W_hbm")
def vector_intensity(given: Given) -> Answer:
    return roofline.critical_intensity(given["vpu_flops_per_s"], given["hbm_bytes_per_s"])


@solves("roofline-2chip-net-intensity", formula="I_crit = C / W1, one direction of a link")
def link_intensity(given: Given) -> Answer:
    return thresholds.split_contraction_width(
        1, given["peak_flops_per_s"], given["link_bytes_per_s"]
    )


@solves("roofline-dot-intensity", formula="I = (2N-1) / (4N+2)")
def dot_product(given: Given) -> Answer:
    return roofline.dot_intensity(column(given["N"]))


@solves("roofline-max-vs-sum", formula="(T_math + T_comms) / max(T_math, T_comms)")
def overlap_gain(given: Given) -> Answer:
    math_s, comms_s = column(given["pairs"])
    bounds = roofline.Bounds(math_s, comms_s)
    return bounds.upper / bounds.lower


@solves("roofline-matmul-intensity-exact", formula="I = 2BDF / e(BD + DF + BF)")
def exact_intensity(given: Given) -> Answer:
    e = given["bytes_per_elem"]
    matmul = roofline.Matmul(
        B=given["B"], D=given["D"], F=given["F"], a_bytes=e, w_bytes=e, out_bytes=e
    )
    return matmul.intensity


@solves(
    "roofline-bcrit-v5e-bf16", "roofline-q2-mixed-precision", formula="B_crit = C / W_hbm * e_w / 2"
)
def critical_batch(given: Given) -> Answer:
    weights = dtype(given["weight_bytes"])
    return roofline.critical_batch(given["peak_flops_per_s"], given["hbm_bytes_per_s"], weights)


@solves(
    "roofline-q1-bcrit-feb", "roofline-q1-bcrit-later", formula="B_crit = C_int8 / W_hbm * e_w / 2"
)
def critical_batch_int8(given: Given) -> Answer:
    weights = dtype(given["weight_bytes"])
    return roofline.critical_batch(given["peak_ops_per_s"], given["hbm_bytes_per_s"], weights)


@solves("roofline-q5-h100-feb", "roofline-q5-h100-later", formula="B_crit = C / W_hbm * e_w / 2")
def critical_batch_h100(given: Given) -> Answer:
    return roofline.critical_batch(given["peak_flops_per_s"], given["hbm_bytes_per_s"])


@solves("roofline-q1-bytes-ops", formula="loads e(BD + DF), writes e BF, does 2BDF")
def bytes_and_ops(given: Given) -> Answer:
    e = given["bytes_per_elem"]
    matmul = roofline.Matmul(
        B=given["B"], D=given["D"], F=given["F"], a_bytes=e, w_bytes=e, out_bytes=e
    )
    return {"loaded": matmul.loaded_bytes, "written": matmul.written_bytes, "ops": matmul.flops}


@solves("roofline-local-batch", formula="B = sequences * length; B / N")
def local_batch(given: Given) -> Answer:
    tokens = Train(batch=given["sequences"], seq=given["seq_len"]).tokens_per_step
    return [tokens, tokens / given["chips"]]
