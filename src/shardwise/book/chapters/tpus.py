"""Section 2, how to think about TPUs."""

from __future__ import annotations

from shardwise.book.givens import chip, ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import peaks, roofline, shards
from shardwise.formulas.inference import weight_read_s
from shardwise.formulas.roofline import critical_batch, math_s, transfer_s
from shardwise.hardware import System, Torus, find_chip
from shardwise.ops import collective


def _pod(g: Given) -> System:
    shape = tuple(g["shape"])
    made = chip(
        g.get("chip", "v5p"),
        peak__bf16=g.get("flops_per_s", g.get("chip_flops_per_s")),
        hbm__capacity=g.get("hbm_bytes"),
        core__count=g.get("cores_per_chip"),
        host__chips=g.get("chips_per_host"),
    )
    torus = Torus(shape=shape, wrapped=(True,) * len(shape))
    return System(name="pod", chip=made, topology=torus)


@solves("tpus-mxu-flops-per-cycle", by="2 * 8 * 128 * 128 / 8 cycles")
def matrix_unit(g: Given) -> Answer:
    return peaks.matrix_flops_per_cycle(g["rows"], g["k"], g["n"], g["cycles"])


@solves("tpus-mxu-flops", by="FLOPs per cycle * clock")
def matrix_unit_rate(g: Given) -> Answer:
    return peaks.peak_from_units(matrix_unit(g), g["clock_hz"])


@solves("tpus-v5e-chip-from-mxu", by="MXUs * FLOPs per cycle * clock; int8 twice")
def chip_from_units(g: Given) -> Answer:
    rates = [g["flops_per_cycle"], 2 * g["flops_per_cycle"]]
    return [peaks.peak_from_units(r, g["clock_hz"], g["mxus"]) for r in rates]


@solves("tpus-v5p-core-chip", by="C / cores, C")
def core_and_chip(g: Given) -> Answer:
    made = chip(g["chip"], peak__bf16=g["chip_flops_per_s"], core__count=g["cores"])
    return [peaks.core_peak(made), made.peak("bf16")]


@solves("tpus-v5p-pod-flops", by="X Y Z C")
def pod_flops(g: Given) -> Answer:
    return peaks.totals(_pod(g)).flops_per_s


@solves("tpus-q2-v5e-pod", "tpus-q2-v5p-pod", by="chips / chips per host; chips * cores, C, HBM")
def pod_totals(g: Given) -> Answer:
    t = peaks.totals(_pod(g))
    return {
        "hosts": t.n_hosts,
        "cores": t.n_cores,
        "flops_per_s": t.flops_per_s,
        "hbm_bytes": t.hbm_bytes,
    }


@solves("tpus-macs-vs-flops", by="MAC/s = C / 2")
def multiply_adds(g: Given) -> Answer:
    return peaks.macs_per_s(g["flops_per_s"])


@solves("tpus-vmem-intensity", by="I_crit = C / (22 W_hbm)")
def vmem_intensity(g: Given) -> Answer:
    return roofline.critical_intensity(
        g["peak_flops_per_s"], g["vmem_speedup"] * g["hbm_bytes_per_s"]
    )


@solves("tpus-pcie-vs-hbm", by="T_pcie / T_hbm of the same bytes")
def pcie_against_hbm(g: Given) -> Answer:
    return transfer_s(1, g["pcie_bytes_per_s"]) / transfer_s(1, g["hbm_bytes_per_s"])


@solves("tpus-ici-vs-hbm-v5p", by="T_ici / T_hbm of the same bytes")
def ici_against_hbm(g: Given) -> Answer:
    return transfer_s(1, g["ici_bytes_per_s"]) / transfer_s(1, g["hbm_bytes_per_s"])


@solves("tpus-pod-chips", by="X Y Z")
def pod_chips(g: Given) -> Answer:
    shapes = {name: tuple(shape) for name, shape in g["shapes"].items()}
    return {name: Torus(shape=s, wrapped=(True,) * len(s)).n_chips for name, s in shapes.items()}


@solves("tpus-no-wrap-slowdown", by="T_line / T_ring = 2(n-1) / n")
def without_wraparound(g: Given) -> Answer:
    line, closed = (ring(g["n"], 1.0, closed=c) for c in (False, True))
    return collective.time_s("all_gather", 1, line) / collective.time_s("all_gather", 1, closed)


@solves("tpus-links-per-chip", by="2 * axes of the torus")
def links(g: Given) -> Answer:
    return [peaks.ici_links(find_chip(name)) for name in g["chips"]]


@solves("tpus-ring-diameter", by="n - 1 on a line, floor(n/2) on a ring")
def diameter(g: Given) -> Answer:
    tori = [Torus(shape=(g["n"],), wrapped=(w,)) for w in (False, True)]
    return [t.farthest(0) for t in tori]


@solves(
    "tpus-table-v3",
    "tpus-table-v4p",
    "tpus-table-v5p",
    "tpus-table-v5e",
    "tpus-table-v6e",
    "tpus-table-7x",
    by="the catalog's figures as the book quotes them",
)
def table_row(g: Given) -> Answer:
    quoted = find_chip(g["chip"]).quoted("book")
    pod = quoted.ici.pod_shape if quoted.ici else None
    host = quoted.ici.host_shape if quoted.ici else None
    link = quoted.need("ici.link")
    return {
        "pod": pod,
        "host": host,
        "hbm_bytes": quoted.need("hbm.capacity"),
        "hbm_bw": quoted.need("hbm.bandwidth"),
        "bf16": quoted.peak("bf16"),
        "int8": quoted.peak("int8"),
        "ici_oneway": link,
        "ici_bidi": 2 * link,
    }


@solves("tpus-q1-load-200b", by="T = P e / (N W_hbm)")
def load_all_weights(g: Given) -> Answer:
    return weight_read_s(
        g["params"],
        g["bytes_per_param"],
        n_chips=g["chips"],
        hbm_bytes_per_s=g["hbm_bytes_per_s"],
    )


@solves("tpus-q3-pcie-feb", "tpus-q3-pcie-later", by="B > C / W_pcie")
def pcie_batch(g: Given) -> Answer:
    return critical_batch(g["peak_flops_per_s"], g["pcie_bytes_per_s"])


@solves("tpus-q6-pcie-feb", "tpus-q6-pcie-later", by="T = V / (hosts * links * W_pcie)")
def pcie_load(g: Given) -> Answer:
    links = peaks.egress((g["hosts"], g["links_per_host"]), g["pcie_bytes_per_s"])
    return transfer_s(g["bytes"], links)


@solves("tpus-q6-hbm", by="T = V / W_hbm")
def hbm_load(g: Given) -> Answer:
    return transfer_s(g["bytes"], g["hbm_bytes_per_s"])


@solves("tpus-q6-flops", by="T_math = 2BDF / C")
def matmul_time(g: Given) -> Answer:
    return math_s(roofline.Matmul(B=g["B"], D=g["D"], F=g["F"]).flops, g["peak_flops_per_s"])


@solves("tpus-vreg-bytes", by="registers * 8 * 128 * 4 bytes")
def registers(g: Given) -> Answer:
    shapes = [(n, g["sublanes"], g["lanes"]) for n in g["registers"]]
    return [shards.local_bytes("r[N,S,L]", shape, {}, g["bytes_per_lane"]) for shape in shapes]


@solves("tpus-vpu-adders-v4", by="8 * 128 lanes * ALUs")
def adders(g: Given) -> Answer:
    return peaks.alus(g["sublanes"], g["lanes"], g["alus"])


@solves("tpus-vpu-flops-v5p", by="C_vpu = 8 * 128 lanes * ALUs * clock; C_mxu / C_vpu")
def vector_rate(g: Given) -> Answer:
    vector = peaks.vector_peak(adders(g), g["clock_hz"])
    return [vector, g["matmul_flops_per_core"] / vector]


@solves("tpus-systolic-alus", by="side^2; ratio")
def systolic(g: Given) -> Answer:
    small, large = (peaks.alus(side, side) for side in g["sides"])
    return [small, large, large / small]


@solves("tpus-int8-speedup", by="C_int8 / C_bf16")
def int8_speedup(g: Given) -> Answer:
    return {
        name: peaks.dtype_speedup(chip(name, peak__int8=int8, peak__bf16=bf16), "int8")
        for name, (int8, bf16) in g["pairs"].items()
    }
