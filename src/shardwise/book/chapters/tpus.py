"""Section 2, how to think about TPUs."""

from __future__ import annotations

from shardwise.book.givens import chip, column, ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import links, peaks, roofline, shards
from shardwise.formulas.inference import weight_read_s
from shardwise.formulas.roofline import critical_batch, math_s, transfer_s
from shardwise.hardware import System, Torus, find_chip
from shardwise.ops import collective


def _pod(g: Given) -> System:
    shape = tuple(g["shape"])
    tpu = chip(
        g.get("chip", "v5p"),
        peak__bf16=g.get("flops_per_s", g.get("chip_flops_per_s")),
        hbm__capacity=g.get("hbm_bytes"),
        core__count=g.get("cores_per_chip"),
        host__chips=g.get("chips_per_host"),
    )
    torus = Torus(shape=shape, wrapped=(True,) * len(shape))
    return System(name="pod", chip=tpu, topology=torus)


@solves("tpus-mxu-flops-per-cycle", formula="2 * 8 * 128 * 128 / 8 cycles")
def matrix_unit(g: Given) -> Answer:
    return peaks.matrix_flops_per_cycle(g["rows"], g["k"], g["n"], g["cycles"])


@solves("tpus-mxu-flops", formula="FLOPs per cycle * clock")
def matrix_unit_rate(g: Given) -> Answer:
    return peaks.peak_from_units(matrix_unit(g), g["clock_hz"])


@solves("tpus-v5e-chip-from-mxu", formula="MXUs * FLOPs per cycle * clock; int8 twice")
def chip_from_units(g: Given) -> Answer:
    bf16 = peaks.peak_from_units(g["flops_per_cycle"], g["clock_hz"], g["mxus"])
    int8 = peaks.peak_from_units(2 * g["flops_per_cycle"], g["clock_hz"], g["mxus"])
    return [bf16, int8]


@solves("tpus-v5p-core-chip", formula="C / cores, C")
def core_and_chip(g: Given) -> Answer:
    tpu = chip(g["chip"], peak__bf16=g["chip_flops_per_s"], core__count=g["cores"])
    return [peaks.core_peak(tpu), tpu.peak("bf16")]


@solves("tpus-v5p-pod-flops", formula="X Y Z C")
def pod_flops(g: Given) -> Answer:
    return peaks.totals(_pod(g)).flops_per_s


@solves(
    "tpus-q2-v5e-pod", "tpus-q2-v5p-pod", formula="chips / chips per host; chips * cores, C, HBM"
)
def pod_totals(g: Given) -> Answer:
    totals = peaks.totals(_pod(g))
    return {
        "hosts": totals.n_hosts,
        "cores": totals.n_cores,
        "flops_per_s": totals.flops_per_s,
        "hbm_bytes": totals.hbm_bytes,
    }


@solves("tpus-macs-vs-flops", formula="MAC/s = C / 2")
def multiply_adds(g: Given) -> Answer:
    return peaks.macs_per_s(g["flops_per_s"])


@solves("tpus-vmem-intensity", formula="I_crit = C / (22 W_hbm)")
def vmem_intensity(g: Given) -> Answer:
    return roofline.critical_intensity(
        g["peak_flops_per_s"], g["vmem_speedup"] * g["hbm_bytes_per_s"]
    )


@solves("tpus-pcie-vs-hbm", formula="T_pcie / T_hbm of the same bytes")
def pcie_against_hbm(g: Given) -> Answer:
    return transfer_s(1, g["pcie_bytes_per_s"]) / transfer_s(1, g["hbm_bytes_per_s"])


@solves("tpus-ici-vs-hbm-v5p", formula="T_ici / T_hbm of the same bytes")
def ici_against_hbm(g: Given) -> Answer:
    return transfer_s(1, g["ici_bytes_per_s"]) / transfer_s(1, g["hbm_bytes_per_s"])


@solves("tpus-pod-chips", formula="X Y Z")
def pod_chips(g: Given) -> Answer:
    n_chips = {}
    for name, shape in g["shapes"].items():
        torus = Torus(shape=tuple(shape), wrapped=(True,) * len(shape))
        n_chips[name] = torus.n_chips
    return n_chips


@solves("tpus-no-wrap-slowdown", formula="T_line / T_ring = 2(n-1) / n")
def without_wraparound(g: Given) -> Answer:
    line_s = collective.time_s("all_gather", 1, ring(g["n"], 1.0, closed=False))
    ring_s = collective.time_s("all_gather", 1, ring(g["n"], 1.0))
    return line_s / ring_s


@solves("tpus-links-per-chip", formula="2 * axes of the torus")
def links_per_chip(g: Given) -> Answer:
    return [peaks.ici_links(find_chip(name)) for name in g["chips"]]


@solves("tpus-ring-diameter", formula="n - 1 on a line, floor(n/2) on a ring")
def diameter(g: Given) -> Answer:
    line = Torus(shape=(g["n"],), wrapped=(False,))
    closed = Torus(shape=(g["n"],), wrapped=(True,))
    return [line.farthest(0), closed.farthest(0)]


@solves(
    "tpus-table-v3",
    "tpus-table-v4p",
    "tpus-table-v5p",
    "tpus-table-v5e",
    "tpus-table-v6e",
    "tpus-table-7x",
    formula="the catalog's figures as the book quotes them",
)
def table_row(g: Given) -> Answer:
    quoted = find_chip(g["chip"]).quoted("book")
    link = quoted.need("ici.link")
    return {
        "pod": quoted.ici and quoted.ici.pod_shape,
        "host": quoted.ici and quoted.ici.host_shape,
        "hbm_bytes": quoted.need("hbm.capacity"),
        "hbm_bw": quoted.need("hbm.bandwidth"),
        "bf16": quoted.peak("bf16"),
        "int8": quoted.peak("int8"),
        "ici_oneway": link,
        "ici_bidi": 2 * link,
    }


@solves("tpus-q1-load-200b", formula="T = P e / (N W_hbm)")
def load_all_weights(g: Given) -> Answer:
    return weight_read_s(
        g["params"],
        g["bytes_per_param"],
        n_chips=g["chips"],
        hbm_bytes_per_s=g["hbm_bytes_per_s"],
    )


@solves("tpus-q3-pcie-feb", "tpus-q3-pcie-later", formula="B > C / W_pcie")
def pcie_batch(g: Given) -> Answer:
    return critical_batch(g["peak_flops_per_s"], g["pcie_bytes_per_s"])


@solves("tpus-q6-pcie-feb", "tpus-q6-pcie-later", formula="T = V / (hosts * links * W_pcie)")
def pcie_load(g: Given) -> Answer:
    bytes_per_s = peaks.egress((g["hosts"], g["links_per_host"]), g["pcie_bytes_per_s"])
    return transfer_s(g["bytes"], bytes_per_s)


@solves("tpus-q5-ici", formula="6 hops; hops T_min; V / (2 W1) + hops T_min")
def point_to_point(g: Given) -> Answer:
    torus = Torus(shape=tuple(g["shape"]), wrapped=tuple(g["wrapped"]))
    hops = links.torus_hops(torus, g["start"], g["end"])
    times = links.point_to_point_s(
        column([0, g["bytes"]]),
        hops,
        link_bytes_per_s_one_way=g["link_oneway_bytes_per_s"],
        hop_s=g["hop_latency_s"],
        ports=g["ports"],
    )
    return [hops, *times]


@solves("tpus-q6-ici", formula="T = V (n-1) / n / (links W1)")
def gather_on_one_chip(g: Given) -> Answer:
    return links.gather_to_one_s(
        g["bytes"],
        g["chips"],
        links=g["links"],
        link_bytes_per_s_one_way=g["link_oneway_bytes_per_s"],
    )


@solves("tpus-q6-hbm", formula="T = V / W_hbm")
def hbm_load(g: Given) -> Answer:
    return transfer_s(g["bytes"], g["hbm_bytes_per_s"])


@solves("tpus-q6-flops", formula="T_math = 2BDF / C")
def matmul_time(g: Given) -> Answer:
    return math_s(roofline.Matmul(B=g["B"], D=g["D"], F=g["F"]).flops, g["peak_flops_per_s"])


@solves("tpus-vreg-bytes", formula="registers * 8 * 128 * 4 bytes")
def registers(g: Given) -> Answer:
    register = (g["sublanes"], g["lanes"])
    register_bytes = shards.local_bytes("r[S,L]", register, {}, g["bytes_per_lane"])
    return [n_registers * register_bytes for n_registers in g["registers"]]


@solves("tpus-vpu-adders-v4", formula="8 * 128 lanes * ALUs")
def adders(g: Given) -> Answer:
    return peaks.alus(g["sublanes"], g["lanes"], g["alus"])


@solves("tpus-vpu-flops-v5p", formula="C_vpu = 8 * 128 lanes * ALUs * clock; C_mxu / C_vpu")
def vector_rate(g: Given) -> Answer:
    vector_flops_per_s = peaks.vector_peak(adders(g), g["clock_hz"])
    return [vector_flops_per_s, g["matmul_flops_per_core"] / vector_flops_per_s]


@solves("tpus-systolic-alus", formula="side^2; ratio")
def systolic(g: Given) -> Answer:
    small, large = [peaks.alus(side, side) for side in g["sides"]]
    return [small, large, large / small]


@solves("tpus-int8-speedup", formula="C_int8 / C_bf16")
def int8_speedup(g: Given) -> Answer:
    speedups = {}
    for name, (int8, bf16) in g["pairs"].items():
        tpu = chip(name, peak__int8=int8, peak__bf16=bf16)
        speedups[name] = peaks.dtype_speedup(tpu, "int8")
    return speedups
