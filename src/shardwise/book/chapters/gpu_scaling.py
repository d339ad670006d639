"""Section 12, how to think about GPUs: when parallelism stays compute-bound."""

from __future__ import annotations

from shardwise.book.givens import chip, column
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import thresholds
from shardwise.formulas.flops import compute_s, training_flops
from shardwise.formulas.roofline import critical_intensity
from shardwise.hardware import diff
from shardwise.strategy.mesh import Mesh
from shardwise.units import DAY
from shardwise.workload import Train


def _alpha_across_nodes(flops_per_s: float, node_bytes_per_s: float) -> float:
    """FLOPs per byte that leaves a node of 8 GPUs, over which the array is sharded."""
    h100 = chip("h100", peak__bf16=flops_per_s, scale_out__egress=node_bytes_per_s / 8)
    return thresholds.alpha(h100, "scale_out")


def _alpha_in_node(flops_per_s: float, egress: float) -> float:
    """FLOPs per byte that leaves a GPU."""
    return thresholds.alpha(chip("h100", peak__bf16=flops_per_s, node__egress=egress), "node")


@solves("gpus-dp-thresholds", formula="B/X > C / W_gpu; C / W_node; times GPUs")
def data_parallel(g: Given) -> Answer:
    in_node = thresholds.data_parallel_tokens(_alpha_in_node(g["C"], g["gpu"]))
    across_nodes = thresholds.data_parallel_tokens(_alpha_across_nodes(g["C"], g["node"]))
    h800 = thresholds.data_parallel_tokens(_alpha_in_node(g["C"], g["h800"]))
    return {
        "node": in_node,
        "beyond": across_nodes,
        "llama": across_nodes * g["gpus"],
        "h800": h800,
        "h800_batch": h800 * g["h800_gpus"],
    }


@solves("gpus-deepseek-batch", formula="sequences * length; / GPUs")
def batch(g: Given) -> Answer:
    tokens = Train(batch=g["seqs"], seq=g["seq_len"]).tokens_per_step
    return [tokens, tokens / g["gpus"]]


@solves("gpus-moe-threshold", formula="B/X > alpha E / k")
def experts(g: Given) -> Answer:
    return thresholds.data_parallel_tokens(g["dense"], n_experts=g["E"], experts_per_token=g["k"])


@solves("gpus-two-node-dp", formula="B/X > alpha (X-1) / X")
def two_nodes(g: Given) -> Answer:
    return thresholds.data_parallel_tokens(g["dense"], replicas=g["X"])


@solves("gpus-tp-limit", formula="Y < F / alpha; two nodes F / alpha + 8")
def tensor_limits(g: Given) -> Answer:
    return [
        thresholds.tensor_limit(g["F"], g["node"]),
        thresholds.tensor_limit(g["F"], g["beyond"]),
        thresholds.tensor_limit(g["F"], g["beyond"], inner=8),
    ]


@solves("gpus-known-layouts", formula="product of the mesh")
def layouts(g: Given) -> Answer:
    expert, pipe, data = g["deepseek"]
    tensor, stages, replicas = g["llama"]
    return [
        Mesh(expert=expert, pipe=pipe, data=data).n_chips,
        Mesh(tensor=tensor, pipe=stages, data=replicas).n_chips,
    ]


@solves("gpus-q5-1", formula="C / W_gpu; C / W_node")
def b200(g: Given) -> Answer:
    return [_alpha_in_node(g["C"], g["gpu"]), _alpha_across_nodes(g["C"], g["node"])]


@solves("gpus-nvl72-gain", formula="(C / W_node) of an H100 node / (C / W_node) of an NVL72")
def rack_gain(g: Given) -> Answer:
    h100, nvl72 = critical_intensity(column(g["C"]), column(g["node"]))
    return h100 / nvl72


@solves("gpus-q5-2-time", formula="N C MFU; 6 P tokens / (N C MFU)")
def run_time(g: Given) -> Answer:
    flops = training_flops(g["params"], g["tokens"])
    seconds = compute_s(flops, g["gpus"], g["C"], g["mfu"])
    return [flops / seconds, seconds, seconds / DAY]


@solves("gpus-price-ratio", formula="figure by figure")
def price_ratio(g: Given) -> Answer:
    chips = []
    for index, name in enumerate(("h200", "v5p")):
        figures = {
            "peak__bf16": g["flops"][index],
            "hbm__capacity": g["hbm"][index],
            "price__chip_hour": g["usd"][index],
        }
        chips.append(chip(name, **figures))
    h200, v5p = chips
    ratios = {row.figure: row.ratio for row in diff(v5p, h200)}
    return [ratios["peak.bf16"], ratios["hbm.capacity"], ratios["price.chip_hour"]]
