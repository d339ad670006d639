"""Section 12, how to think about GPUs: the chip and its networks."""

from __future__ import annotations

from shardwise.book.givens import chip, node, ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import experts, peaks, roofline, shards
from shardwise.hardware import fat_tree, find_chip
from shardwise.ops import collective

BITS = 8
TABLE = {
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
    by="the catalog's figures as the book quotes them",
)
def table_row(g: Given) -> Answer:
    quoted = find_chip(g["chip"]).quoted("book")
    row = {name: quoted.need(figure) for name, figure in TABLE.items()}
    if "fp4" in quoted.peak_flops_per_s:
        row["fp4"] = quoted.peak("fp4")
    return row


@solves("gpus-tensor-core-rate", by="C / (SMs * 4 * clock)")
def tensor_core(g: Given) -> Answer:
    rows = zip(g["flops"], g["clock_hz"], g["sms"], strict=True)
    return [peaks.flops_per_cycle(c, clock, n * g["tc_per_sm"]) for c, clock, n in rows]


@solves("gpus-registers-warps", by="4 * 16384 words; registers / (32 * per thread)")
def warps(g: Given) -> Answer:
    words = (g["subpartitions"], g["words"])
    file = shards.local_bytes("r[P,R]", words, {}, g["word_bytes"])
    registers = peaks.alus(*words)
    resident = peaks.resident_warps(registers, g["regs_per_thread"], g["threads_per_warp"])
    return [file, resident]


@solves("gpus-vs-tpu-units", by="SMs * 4; SMs * SMEM; SMs * registers; cores * 4")
def units(g: Given) -> Answer:
    made = chip(
        "h100", sm__count=g["h100_sms"], sm__shared_memory=g["smem"], sm__registers=g["regs"]
    )
    schedulers = peaks.alus(g["h100_sms"], g["subpartitions"])
    slots = peaks.alus(g["tpu_cores"], g["vpu_slots"])
    return [int(made.need("sm.count")), schedulers, *peaks.sm_bytes(made), slots]


@solves("gpus-q1-1", by="SMs * 4 * 32; cores * 4 * 8 * 128")
def alus(g: Given) -> Answer:
    gpus = [peaks.alus(n, g["subpartitions"], g["lanes"]) for n in g["sms"]]
    return [*gpus, peaks.alus(*g["tpu"])]


@solves("gpus-q1-2", by="ALUs * clock; C / that")
def vector_rate(g: Given) -> Answer:
    rates = [peaks.vector_peak(g["alus"], clock) for clock in g["clock_hz"]]
    return [*rates, g["tensor"] / rates[-1]]


@solves("gpus-q1-3", by="C / W_hbm; fp8 twice")
def intensities(g: Given) -> Answer:
    pairs = list(zip(g["flops"], g["hbm"], strict=True))
    return [[roofline.critical_intensity(n * c, w) for c, w in pairs] for n in (1, 2)]


@solves("gpus-q1-4", by="2(BD + DF + BF); max(2BDF / C, bytes / W)")
def matmul(g: Given) -> Answer:
    found = [roofline.Matmul(B=b, D=g["D"], F=g["F"]) for b in g["B"]]
    times = [roofline.bounds(m.flops, g["flops"], m.n_bytes, g["hbm"]).lower for m in found]
    return [found[0].n_bytes, *times]


@solves("gpus-q1-5", by="SMs * SMEM, SMs * registers")
def fast_memory(g: Given) -> Answer:
    made = chip("h100", sm__count=g["sms"], sm__shared_memory=g["smem"], sm__registers=g["regs"])
    shared, registers = peaks.sm_bytes(made)
    return [shared, registers, shared + registers]


@solves("gpus-q1-6", by="C / (2 ALUs)")
def clock(g: Given) -> Answer:
    return peaks.clock_from_peak(g["flops"], g["alus"])


@solves("gpus-q1-7", by="1/12; C / W; 12 N / W")
def vector_add(g: Given) -> Answer:
    roof = roofline.critical_intensity(g["vector_flops"], g["hbm"])
    sizes_of = [peaks.elementwise_bytes(n) for n in g["N"]]
    times = [roofline.transfer_s(n, g["hbm"]) for n in sizes_of]
    return [peaks.elementwise_intensity(), roof, *times]


@solves("gpus-nvlink-table", by="links * rate of a link")
def nvlink(g: Given) -> Answer:
    pairs = zip(g["ports"], g["link"], strict=True)
    return [peaks.egress((ports,), rate) for ports, rate in pairs]


@solves("gpus-q2-1", by="switches * ports * rate; GPUs * egress; the smaller")
def node_bandwidth(g: Given) -> Answer:
    return list(
        peaks.node_bytes_per_s(g["gpus"], g["egress"], g["switches"], g["ports"], g["link"])
    )


@solves("gpus-q2-2", by="2 * n/2 * W_gpu")
def bisection(g: Given) -> Answer:
    return peaks.bisection_bytes_per_s(g["gpus"], g["egress"])


def _gather(g: Given) -> tuple[float, float]:
    """(exact, approximate) AllGather in a node."""
    exact = collective.time_s("all_gather", g["bytes"], node(g["N"], g["egress"]))
    return exact, roofline.transfer_s(g["bytes"], g["egress"])


@solves("gpus-q2-3", by="V (n-1) / (n W_gpu); V / W_gpu")
def gather_exact_first(g: Given) -> Answer:
    return list(_gather(g))


@solves("gpus-pop1", by="V / W_gpu; V (n-1) / (n W_gpu)")
def gather_approximate_first(g: Given) -> Answer:
    return list(reversed(_gather(g)))


@solves("gpus-superpod-counts", by="GPUs / 8; / 32; * 4; SUs * 8; leaves * 32 / 64")
def superpod(g: Given) -> Answer:
    made = chip(
        "h100",
        node__gpus=g["gpus_per_node"],
        node__switches=g["nvswitch_per_node"],
        scale_out__unit_nodes=g["nodes_per_su"],
        scale_out__unit_leaves=g["leaf_per_su"],
    )
    t = fat_tree(made, g["gpus"])
    return [t.n_nodes, t.n_units, t.n_node_switches, t.n_leaves, t.n_spines, t.n_switches]


@solves("gpus-q3-1", by="8 NICs; 32 nodes; leaves up; all spines; per node")
def tree_levels(g: Given) -> Answer:
    made = chip(
        "h100",
        scale_out__egress=g["link_bits"] / BITS,
        scale_out__unit_leaves=g["leaf"],
        scale_out__unit_nodes=g["leaf_ports_down"],
        scale_out__switch_ports=g["spine_ports"],
        node__gpus=g["nics"],
    )
    t = fat_tree(made, g["nodes"] * g["nics"])
    per_node = t.spine_bytes_per_s / t.n_nodes
    up = t.unit_bytes_per_s
    return [t.node_bytes_per_s, up, up, t.spine_bytes_per_s, per_node]


@solves("gpus-q3-2", by="leaves * 32 / 64; nodes / 32")
def larger_tree(g: Given) -> Answer:
    tree = fat_tree(find_chip("h100"), g["gpus"])
    return [tree.n_spines, tree.n_units]


@solves("gpus-nvl72-egress", by="18 * 4 * 400 Gb/s; over an H100 node")
def rack(g: Given) -> Answer:
    out = peaks.egress((g["trays"], g["nics"]), g["link_bits"] / BITS)
    return [out, out / g["h100_node"]]


@solves("gpus-a2a-node", by="(n-1) / n^2; 1/n; (1/4) / (1/n)")
def all_to_all(g: Given) -> Answer:
    n = g["N"]
    exact = collective.time_s("all_to_all", 1, node(n, 1.0))
    torus = collective.time_s("all_to_all", 1, ring(n, 1.0))
    approximate = experts.ragged_share(1, n)
    return [exact, approximate, torus / approximate]


@solves("gpus-sharp-gain", by="2(n-1)/n; measured * 1.3")
def in_network(g: Given) -> Answer:
    plain, reducing = (
        collective.time_s("all_reduce", 1, node(g["N"], 1.0, reduces=r)) for r in (False, True)
    )
    return [plain / reducing, g["measured"] * (1 + g["gain"])]


@solves("gpus-tp-shard-size", by="2 D F / Y")
def tensor_shard(g: Given) -> Answer:
    return shards.local_bytes("W[D,F_Y]", (g["D"], g["F"]), {"Y": g["ways"]})


@solves("gpus-q4-2", by="n V in; n V out; V / W_gpu")
def in_network_reduce(g: Given) -> Answer:
    through = shards.total_bytes("A[B]", (int(g["B"]),), {"N": g["N"]}, 1)
    span = node(g["N"], g["gpu"], reduces=True)
    return [through, through, collective.time_s("all_reduce", g["B"], span)]
