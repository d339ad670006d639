"""Section 2, how to think about TPUs."""

from __future__ import annotations

from shardwise.book.givens import chip, column, ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import links, peaks, roofline, shards
from shardwise.formulas.inference import weight_read_s
from shardwise.formulas.roofline import critical_batch, math_s, transfer_s
from shardwise.hardware import System, Torus, find_chip
from shardwise.ops import collective


def _pod(given: Given) -> System:
    shape = tuple(given["shape"])
    tpu = chip(
        given.get("chip", "v5p"),
        peak__bf16=given.get("flops_per_s", given.get("chip_flops_per_s")),
        hbm__capacity=given.get("hbm_bytes"),
        core__count=given.get("cores_per_chip"),
        host__chips=given.get("chips_per_host"),
    )
    torus = Torus(shape=shape, wrapped=(True,) * len(shape))
    return System(name="pod", chip=tpu, topology=torus)


@solves("tpus-mxu-flops-per-cycle", formula="2 * 8 * 128 * 128 / 8 cycles")
def matrix_unit(given: Given) -> Answer:
    return peaks.matrix_flops_per_cycle(given["rows"], given["k"], given["n"], given["cycles"])


@solves("tpus-mxu-flops", formula="FLOPs per cycle * clock")
def matrix_unit_rate(given: Given) -> Answer:
    return peaks.peak_from_units(matrix_unit(given), given["clock_hz"])


@solves("tpus-v5e-chip-from-mxu", formula="MXUs * FLOPs per cycle * clock; twice that in int8")
def chip_from_units(given: Given) -> Answer:
    bf16 = peaks.peak_from_units(given["flops_per_cycle"], given["clock_hz"], given["mxus"])
    int8 = peaks.peak_from_units(2 * given["flops_per_cycle"], given["clock_hz"], given["mxus"])
    return [bf16, int8]


@solves("tpus-v5p-core-chip", formula="C / cores, C")
def core_and_chip(given: Given) -> Answer:
    tpu = chip(given["chip"], peak__bf16=given["chip_flops_per_s"], core__count=given["cores"])
    return [peaks.core_peak(tpu), tpu.peak("bf16")]


@solves("tpus-v5p-pod-flops", formula="X Y Z C")
def pod_flops(given: Given) -> Answer:
    return peaks.totals(_pod(given)).flops_per_s


@solves(
    "tpus-q2-v5e-pod", "tpus-q2-v5p-pod", formula="chips / chips per host; chips * cores, C, HBM"
)
def pod_totals(given: Given) -> Answer:
    totals = peaks.totals(_pod(given))
    return {
        "hosts": totals.n_hosts,
        "cores": totals.n_cores,
        "flops_per_s": totals.flops_per_s,
        "hbm_bytes": totals.hbm_bytes,
    }


@solves("tpus-macs-vs-flops", formula="MAC/s = C / 2")
def multiply_adds(given: Given) -> Answer:
    return peaks.macs_per_s(given["flops_per_s"])


@solves("tpus-vmem-intensity", formula="I_crit = C / (22 W_hbm)")
def vmem_intensity(given: Given) -> Answer:
    return roofline.critical_intensity(
        given["peak_flops_per_s"], given["vmem_speedup"] * given["hbm_bytes_per_s"]
    )


@solves("tpus-pcie-vs-hbm", formula="T_pcie / T_hbm of the same bytes")
def pcie_against_hbm(given: Given) -> Answer:
    return transfer_s(1, given["pcie_bytes_per_s"]) / transfer_s(1, given["hbm_bytes_per_s"])


@solves("tpus-ici-vs-hbm-v5p", formula="T_ici / T_hbm of the same bytes")
def ici_against_hbm(given: Given) -> Answer:
    return transfer_s(1, given["ici_bytes_per_s"]) / transfer_s(1, given["hbm_bytes_per_s"])


@solves("tpus-pod-chips", formula="X Y Z")
def pod_chips(given: Given) -> Answer:
    n_chips = {}
    for name, shape in given["shapes"].items():
        torus = Torus(shape=tuple(shape), wrapped=(True,) * len(shape))
        n_chips[name] = torus.n_chips
    return n_chips


@solves("tpus-no-wrap-slowdown", formula="T_line / T_ring = 2(n-1) / n")
def without_wraparound(given: Given) -> Answer:
    line_s = collective.time_s("all_gather", 1, ring(given["n"], 1.0, closed=False))
    ring_s = collective.time_s("all_gather", 1, ring(given["n"], 1.0))
    return line_s / ring_s


@solves("tpus-links-per-chip", formula="2 * axes of the torus")
def links_per_chip(given: Given) -> Answer:
    return [peaks.ici_links(find_chip(name)) for name in given["chips"]]


@solves("tpus-ring-diameter", formula="n - 1 on a line, floor(n/2) on a ring")
def diameter(given: Given) -> Answer:
    line = Torus(shape=(given["n"],), wrapped=(False,))
    closed = Torus(shape=(given["n"],), wrapped=(True,))
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
def table_row(given: Given) -> Answer:
    quoted = find_chip(given["chip"]).quoted("book")
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
def load_all_weights(given: Given) -> Answer:
    return weight_read_s(
        given["params"],
        given["bytes_per_param"],
        n_chips=given["chips"],
        hbm_bytes_per_s=given["hbm_bytes_per_s"],
    )


@solves("tpus-q3-pcie-feb", "tpus-q3-pcie-later", formula="B > C / W_pcie")
def pcie_batch(given: Given) -> Answer:
    return critical_batch(given["peak_flops_per_s"], given["pcie_bytes_per_s"])


@solves("tpus-q6-pcie-feb", "tpus-q6-pcie-later", formula="T = V / (hosts * links * W_pcie)")
def pcie_load(given: Given) -> Answer:
    bytes_per_s = peaks.egress((given["hosts"], given["links_per_host"]), given["pcie_bytes_per_s"])
    return transfer_s(given["bytes"], bytes_per_s)


@solves("tpus-q5-ici", formula="6 hops; hops T_min; V / (2 W1) + hops T_min")
def point_to_point(given: Given) -> Answer:
    torus = Torus(shape=tuple(given["shape"]), wrapped=tuple(given["wrapped"]))
    hops = links.torus_hops(torus, given["start"], given["end"])
    times = links.point_to_point_s(
        column([0, given["bytes"]]),
        hops,
        link_bytes_per_s_one_way=given["link_oneway_bytes_per_s"],
        hop_s=given["hop_latency_s"],
        ports=given["ports"],
    )
    return [hops, *times]


@solves("tpus-q6-ici", formula="T = V (n-1) / n / (links W1)")
def gather_on_one_chip(given: Given) -> Answer:
    return links.gather_to_one_s(
        given["bytes"],
        given["chips"],
        links=given["links"],
        link_bytes_per_s_one_way=given["link_oneway_bytes_per_s"],
    )


@solves("tpus-q6-hbm", formula="T = V / W_hbm")
def hbm_load(given: Given) -> Answer:
    return transfer_s(given["bytes"], given["hbm_bytes_per_s"])


@solves("tpus-q6-flops", formula="T_math = 2BDF / C")
def matmul_time(given: Given) -> Answer:
    return math_s(
        roofline.Matmul(B=given["B"], D=given["D"], F=given["F"]).flops, given["peak_flops_per_s"]
    )


@solves("tpus-vreg-bytes", formula="registers * 8 * 128 * 4 bytes")
def registers(given: Given) -> Answer:
    register = (given["sublanes"], given["lanes"])
    register_bytes = shards.local_bytes("r[S,L]", register, {}, given["bytes_per_lane"])
    return [n_registers * register_bytes for n_registers in given["registers"]]


@solves("tpus-vpu-adders-v4", formula="8 * 128 lanes * ALUs")
def adders(given: Given) -> Answer:
    return peaks.alus(given["sublanes"], given["lanes"], given["alus"])


@solves("tpus-vpu-flops-v5p", formula="C_vpu = 8 * 128 lanes * ALUs * clock; C_mxu / C_vpu")
def vector_rate(given: Given) -> Answer:
    vector_flops_per_s = peaks.vector_peak(adders(given), given["clock_hz"])
    return [vector_flops_per_s, given["matmul_flops_per_core"] / vector_flops_per_s]


@solves("tpus-systolic-alus", formula="side^2; ratio")
def systolic(given: Given) -> Answer:
    small, large = [peaks.alus(side, side) for side in given["sides"]]
    return [small, large, large / small]


@solves("tpus-int8-speedup", formula="C_int8 / C_bf16")
def int8_speedup(given: Given) -> Answer:
    speedups = {}
    for name, (int8, bf16) in given["pairs"].items():
        tpu = chip(name, peak__int8=int8, peak__bf16=bf16)
        speedups[name] = peaks.dtype_speedup(tpu, "int8")
    return speedups
