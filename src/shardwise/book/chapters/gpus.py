"""Section 12, how to think about GPUs: the chip and its networks."""

from __future__ import annotations

from shardwise.book.givens import chip, column, node, ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import experts, peaks, roofline, shards
from shardwise.hardware import fat_tree, find_chip
from shardwise.ops import collective

BITS = 8
FIGURES = {  # the table's columns in the catalog
    "sms": "sm.count",
    "smem": "sm.shared_memory",
    "l2": "l2.capacity",
    "hbm_bytes": "hbm.capacity",
    "hbm_bw": "hbm.bandwidth",
    "bf16": "peak.bf16",
    "fp8_int8": "peak.int8",
}


@solves(
    "gpus-table-a100",
    "gpus-table-h100",
    "gpus-table-h200",
    "gpus-table-b200",
    formula="the catalog's figures as the book quotes them",
)
def table_row(g: Given) -> Answer:
    quoted = find_chip(g["chip"]).quoted("book")
    row = {name: quoted.need(figure) for name, figure in FIGURES.items()}
    if "fp4" in quoted.peak_flops_per_s:
        row["fp4"] = quoted.peak("fp4")
    return row


@solves("gpus-tensor-core-rate", formula="C / (SMs * 4 * clock)")
def tensor_core(g: Given) -> Answer:
    n_units = column(g["sms"]) * g["tc_per_sm"]
    return peaks.flops_per_cycle(column(g["flops"]), column(g["clock_hz"]), n_units)


@solves("gpus-registers-warps", formula="4 * 16384 words; registers / (32 * per thread)")
def warps(g: Given) -> Answer:
    words = (g["subpartitions"], g["words"])
    n_bytes = shards.local_bytes("r[P,R]", words, {}, g["word_bytes"])
    n_registers = peaks.alus(*words)
    n_warps = peaks.resident_warps(n_registers, g["regs_per_thread"], g["threads_per_warp"])
    return [n_bytes, n_warps]


@solves("gpus-vs-tpu-units", formula="SMs * 4; SMs * SMEM; SMs * registers; cores * 4")
def units(g: Given) -> Answer:
    h100 = chip(
        "h100", sm__count=g["h100_sms"], sm__shared_memory=g["smem"], sm__registers=g["regs"]
    )
    schedulers = peaks.alus(g["h100_sms"], g["subpartitions"])
    slots = peaks.alus(g["tpu_cores"], g["vpu_slots"])
    return [int(h100.need("sm.count")), schedulers, *peaks.sm_bytes(h100), slots]


@solves("gpus-q1-1", formula="SMs * 4 * 32; cores * 4 * 8 * 128")
def alus(g: Given) -> Answer:
    gpus = [peaks.alus(n_sms, g["subpartitions"], g["lanes"]) for n_sms in g["sms"]]
    return [*gpus, peaks.alus(*g["tpu"])]


@solves("gpus-q1-2", formula="C_vector = ALUs * clock; C / C_vector")
def vector_rate(g: Given) -> Answer:
    rates = peaks.vector_peak(g["alus"], column(g["clock_hz"]))
    return [*rates, g["tensor"] / rates[-1]]


@solves("gpus-q1-3", formula="C / W_hbm; fp8 twice")
def intensities(g: Given) -> Answer:
    bf16 = roofline.critical_intensity(column(g["flops"]), column(g["hbm"]))
    fp8 = roofline.critical_intensity(2 * column(g["flops"]), column(g["hbm"]))
    return [bf16, fp8]


@solves("gpus-q1-4", formula="2(BD + DF + BF); max(2BDF / C, bytes / W)")
def matmul(g: Given) -> Answer:
    matmuls = roofline.Matmul(B=column(g["B"]), D=g["D"], F=g["F"])
    times = roofline.bounds(matmuls.flops, g["flops"], matmuls.n_bytes, g["hbm"]).lower
    return [matmuls.n_bytes[0], *times]


@solves("gpus-q1-5", formula="SMs * SMEM, SMs * registers")
def fast_memory(g: Given) -> Answer:
    h100 = chip("h100", sm__count=g["sms"], sm__shared_memory=g["smem"], sm__registers=g["regs"])
    shared, registers = peaks.sm_bytes(h100)
    return [shared, registers, shared + registers]


@solves("gpus-q1-6", formula="C / (2 ALUs)")
def clock(g: Given) -> Answer:
    return peaks.clock_from_peak(g["flops"], g["alus"])


@solves("gpus-q1-7", formula="1/12; C / W; 12 N / W")
def vector_add(g: Given) -> Answer:
    critical = roofline.critical_intensity(g["vector_flops"], g["hbm"])
    n_bytes = peaks.elementwise_bytes(column(g["N"]))
    times = roofline.transfer_s(n_bytes, g["hbm"])
    return [peaks.elementwise_intensity(), critical, *times]


@solves("gpus-nvlink-table", formula="links * rate of a link")
def nvlink(g: Given) -> Answer:
    return peaks.egress((column(g["ports"]),), column(g["link"]))


@solves("gpus-q2-1", formula="switches * ports * rate; GPUs * egress; the smaller")
def node_bandwidth(g: Given) -> Answer:
    return list(
        peaks.node_bytes_per_s(g["gpus"], g["egress"], g["switches"], g["ports"], g["link"])
    )


@solves("gpus-q2-2", formula="2 * n/2 * W_gpu")
def bisection(g: Given) -> Answer:
    return peaks.bisection_bytes_per_s(g["gpus"], g["egress"])


def _gather(g: Given) -> tuple[float, float]:
    """Exact and approximate seconds of an AllGather in a node."""
    exact_s = collective.time_s("all_gather", g["bytes"], node(g["N"], g["egress"]))
    return exact_s, roofline.transfer_s(g["bytes"], g["egress"])


@solves("gpus-q2-3", formula="V (n-1) / (n W_gpu); V / W_gpu")
def gather_exact_first(g: Given) -> Answer:
    return list(_gather(g))


@solves("gpus-pop1", formula="V / W_gpu; V (n-1) / (n W_gpu)")
def gather_approximate_first(g: Given) -> Answer:
    return list(reversed(_gather(g)))


@solves("gpus-superpod-counts", formula="GPUs / 8; / 32; * 4; SUs * 8; leaves * 32 / 64")
def superpod(g: Given) -> Answer:
    h100 = chip(
        "h100",
        node__gpus=g["gpus_per_node"],
        node__switches=g["nvswitch_per_node"],
        scale_out__unit_nodes=g["nodes_per_su"],
        scale_out__unit_leaves=g["leaf_per_su"],
    )
    tree = fat_tree(h100, g["gpus"])
    return [
        tree.n_nodes,
        tree.n_units,
        tree.n_node_switches,
        tree.n_leaves,
        tree.n_spines,
        tree.n_switches,
    ]


@solves("gpus-q3-1", formula="8 NICs; 32 nodes; leaves up; all spines; per node")
def tree_levels(g: Given) -> Answer:
    h100 = chip(
        "h100",
        scale_out__egress=g["link_bits"] / BITS,
        scale_out__unit_leaves=g["leaf"],
        scale_out__unit_nodes=g["leaf_ports_down"],
        scale_out__switch_ports=g["spine_ports"],
        node__gpus=g["nics"],
    )
    tree = fat_tree(h100, g["nodes"] * g["nics"])
    uplinks = tree.unit_bytes_per_s
    per_node = tree.spine_bytes_per_s / tree.n_nodes
    return [tree.node_bytes_per_s, uplinks, uplinks, tree.spine_bytes_per_s, per_node]


@solves("gpus-q3-2", formula="leaves * 32 / 64; nodes / 32")
def larger_tree(g: Given) -> Answer:
    tree = fat_tree(find_chip("h100"), g["gpus"])
    return [tree.n_spines, tree.n_units]


@solves("gpus-nvl72-egress", formula="18 * 4 * 400 Gb/s; over an H100 node")
def rack(g: Given) -> Answer:
    egress = peaks.egress((g["trays"], g["nics"]), g["link_bits"] / BITS)
    return [egress, egress / g["h100_node"]]


@solves("gpus-a2a-node", formula="(n-1) / n^2; 1/n; (1/4) / (1/n)")
def all_to_all(g: Given) -> Answer:
    n = g["N"]
    exact_s = collective.time_s("all_to_all", 1, node(n, 1.0))
    torus_s = collective.time_s("all_to_all", 1, ring(n, 1.0))
    approximate_s = experts.ragged_share(1, n)
    return [exact_s, approximate_s, torus_s / approximate_s]


@solves("gpus-sharp-gain", formula="2(n-1)/n; measured * 1.3")
def in_network(g: Given) -> Answer:
    ring_s = collective.time_s("all_reduce", 1, node(g["N"], 1.0))
    sharp_s = collective.time_s("all_reduce", 1, node(g["N"], 1.0, reduces=True))
    return [ring_s / sharp_s, g["measured"] * (1 + g["gain"])]


@solves("gpus-tp-shard-size", formula="2 D F / Y")
def tensor_shard(g: Given) -> Answer:
    return shards.local_bytes("W[D,F_Y]", (g["D"], g["F"]), {"Y": g["ways"]})


@solves("gpus-q4-2", formula="n V in; n V out; V / W_gpu")
def in_network_reduce(g: Given) -> Answer:
    n_bytes = shards.total_bytes("A[B]", (int(g["B"]),), {"N": g["N"]}, 1)
    span = node(g["N"], g["gpu"], reduces=True)
    return [n_bytes, n_bytes, collective.time_s("all_reduce", g["B"], span)]
