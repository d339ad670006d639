"""Section 12, how to think about GPUs: the chip and its networks."""

from __future__ import annotations

from shardwise.book.givens import chip, column, node, ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import experts, peaks, roofline, shards
from shardwise.hardware import fat_tree, find_chip
from shardwise.ops import collective

BITS = 8
FIGURES = {  # column of the book's table -> name of the figure in the catalog
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
def table_row(given: Given) -> Answer:
    quoted = find_chip(given["chip"]).quoted("book")
    row = {name: quoted.need(figure) for name, figure in FIGURES.items()}
    if "fp4" in quoted.peak_flops_per_s:
        row["fp4"] = quoted.peak("fp4")
    return row


@solves("gpus-tensor-core-rate", formula="C / (SMs * 4 * clock)")
def tensor_core(given: Given) -> Answer:
    n_units = column(given["sms"]) * given["tc_per_sm"]
    return peaks.flops_per_cycle(column(given["flops"]), column(given["clock_hz"]), n_units)


@solves("gpus-registers-warps", formula="4 * 16384 words; registers / (32 * per thread)")
def warps(given: Given) -> Answer:
    words = (given["subpartitions"], given["words"])
    n_bytes = shards.local_bytes("r[P,R]", words, {}, given["word_bytes"])
    n_registers = peaks.alus(*words)
    n_warps = peaks.resident_warps(n_registers, given["regs_per_thread"], given["threads_per_warp"])
    return [n_bytes, n_warps]


@solves("gpus-vs-tpu-units", formula="SMs * 4; SMs * SMEM; SMs * registers; cores * 4")
def units(given: Given) -> Answer:
    h100 = chip(
        "h100",
        sm__count=given["h100_sms"],
        sm__shared_memory=given["smem"],
        sm__registers=given["regs"],
    )
    schedulers = peaks.alus(given["h100_sms"], given["subpartitions"])
    slots = peaks.alus(given["tpu_cores"], given["vpu_slots"])
    return [int(h100.need("sm.count")), schedulers, *peaks.sm_bytes(h100), slots]


@solves("gpus-q1-1", formula="SMs * 4 * 32; cores * 4 * 8 * 128")
def alus(given: Given) -> Answer:
    gpus = [peaks.alus(n_sms, given["subpartitions"], given["lanes"]) for n_sms in given["sms"]]
    return [*gpus, peaks.alus(*given["tpu"])]


@solves("gpus-q1-2", formula="C_vector = ALUs * clock; C / C_vector")
def vector_rate(given: Given) -> Answer:
    rates = peaks.vector_peak(given["alus"], column(given["clock_hz"]))
    return [*rates, given["tensor"] / rates[-1]]


@solves("gpus-q1-3", formula="C / W_hbm; in fp8 2 C / W_hbm")
def intensities(given: Given) -> Answer:
    bf16 = roofline.critical_intensity(column(given["flops"]), column(given["hbm"]))
    fp8 = roofline.critical_intensity(2 * column(given["flops"]), column(given["hbm"]))
    return [bf16, fp8]


@solves("gpus-q1-4", formula="2(BD + DF + BF); max(2BDF / C, bytes / W)")
def matmul(given: Given) -> Answer:
    matmuls = roofline.Matmul(B=column(given["B"]), D=given["D"], F=given["F"])
    times = roofline.bounds(matmuls.flops, given["flops"], matmuls.n_bytes, given["hbm"]).lower
    return [matmuls.n_bytes[0], *times]


@solves("gpus-q1-5", formula="SMs * SMEM, SMs * registers")
def fast_memory(given: Given) -> Answer:
    h100 = chip(
        "h100", sm__count=given["sms"], sm__shared_memory=given["smem"], sm__registers=given["regs"]
    )
    shared, registers = peaks.sm_bytes(h100)
    return [shared, registers, shared + registers]


@solves("gpus-q1-6", formula="C / (2 ALUs)")
def clock(given: Given) -> Answer:
    return peaks.clock_from_peak(given["flops"], given["alus"])


@solves("gpus-q1-7", formula="1/12; C / W; 12 N / W")
def vector_add(given: Given) -> Answer:
    critical = roofline.critical_intensity(given["vector_flops"], given["hbm"])
    n_bytes = peaks.elementwise_bytes(column(given["N"]))
    times = roofline.transfer_s(n_bytes, given["hbm"])
    return [peaks.elementwise_intensity(), critical, *times]


@solves("gpus-nvlink-table", formula="links * rate of a link")
def nvlink(given: Given) -> Answer:
    return peaks.egress((column(given["ports"]),), column(given["link"]))


@solves("gpus-q2-1", formula="switches * ports * rate; GPUs * egress; the smaller")
def node_bandwidth(given: Given) -> Answer:
    return list(
        peaks.node_bytes_per_s(
            given["gpus"], given["egress"], given["switches"], given["ports"], given["link"]
        )
    )


@solves("gpus-q2-2", formula="2 * n/2 * W_gpu")
def bisection(given: Given) -> Answer:
    return peaks.bisection_bytes_per_s(given["gpus"], given["egress"])


def _gather(given: Given) -> tuple[float, float]:
    """Seconds of an AllGather in a node: exact, and approximated as V / W."""
    exact_s = collective.time_s("all_gather", given["bytes"], node(given["N"], given["egress"]))
    return exact_s, roofline.transfer_s(given["bytes"], given["egress"])


@solves("gpus-q2-3", formula="V (n-1) / (n W_gpu); V / W_gpu")
def gather_exact_first(given: Given) -> Answer:
    return list(_gather(given))


@solves("gpus-pop1", formula="V / W_gpu; V (n-1) / (n W_gpu)")
def gather_approximate_first(given: Given) -> Answer:
    return list(reversed(_gather(given)))


@solves(
    "gpus-superpod-counts",
    formula="nodes = GPUs / 8; SUs = nodes / 32; nodes * 4; SUs * 8; leaves * 32 / 64",
)
def superpod(given: Given) -> Answer:
    h100 = chip(
        "h100",
        node__gpus=given["gpus_per_node"],
        node__switches=given["nvswitch_per_node"],
        scale_out__unit_nodes=given["nodes_per_su"],
        scale_out__unit_leaves=given["leaf_per_su"],
    )
    tree = fat_tree(h100, given["gpus"])
    return [
        tree.n_nodes,
        tree.n_units,
        tree.n_node_switches,
        tree.n_leaves,
        tree.n_spines,
        tree.n_switches,
    ]


@solves("gpus-q3-1", formula="8 NICs; 32 nodes; leaves up; all spines; per node")
def tree_levels(given: Given) -> Answer:
    h100 = chip(
        "h100",
        scale_out__egress=given["link_bits"] / BITS,
        scale_out__unit_leaves=given["leaf"],
        scale_out__unit_nodes=given["leaf_ports_down"],
        scale_out__switch_ports=given["spine_ports"],
        node__gpus=given["nics"],
    )
    tree = fat_tree(h100, given["nodes"] * given["nics"])
    uplinks = tree.unit_bytes_per_s
    per_node = tree.spine_bytes_per_s / tree.n_nodes
    return [tree.node_bytes_per_s, uplinks, uplinks, tree.spine_bytes_per_s, per_node]


@solves("gpus-q3-2", formula="leaves * 32 / 64; nodes / 32")
def larger_tree(given: Given) -> Answer:
    tree = fat_tree(find_chip("h100"), given["gpus"])
    return [tree.n_spines, tree.n_units]


@solves("gpus-nvl72-egress", formula="18 * 4 * 400 Gb/s; over an H100 node")
def rack(given: Given) -> Answer:
    egress = peaks.egress((given["trays"], given["nics"]), given["link_bits"] / BITS)
    return [egress, egress / given["h100_node"]]


@solves("gpus-a2a-node", formula="(n-1) / n^2; 1/n; (1/4) / (1/n)")
def all_to_all(given: Given) -> Answer:
    n = given["N"]
    exact_s = collective.time_s("all_to_all", 1, node(n, 1.0))
    torus_s = collective.time_s("all_to_all", 1, ring(n, 1.0))
    approximate_s = experts.ragged_share(1, n)
    return [exact_s, approximate_s, torus_s / approximate_s]


@solves("gpus-sharp-gain", formula="2(n-1)/n; measured * 1.3")
def in_network(given: Given) -> Answer:
    ring_s = collective.time_s("all_reduce", 1, node(given["N"], 1.0))
    sharp_s = collective.time_s("all_reduce", 1, node(given["N"], 1.0, reduces=True))
    return [ring_s / sharp_s, given["measured"] * (1 + given["gain"])]


@solves("gpus-tp-shard-size", formula="2 D F / Y")
def tensor_shard(given: Given) -> Answer:
    return shards.local_bytes("W[D,F_Y]", (given["D"], given["F"]), {"Y": given["ways"]})


@solves("gpus-q4-2", formula="n V in; n V out; V / W_gpu")
def in_network_reduce(given: Given) -> Answer:
    n_bytes = shards.total_bytes("A[B]", (int(given["B"]),), {"N": given["N"]}, 1)
    span = node(given["N"], given["gpu"], reduces=True)
    return [n_bytes, n_bytes, collective.time_s("all_reduce", given["B"], span)]
