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
    """FLOPs that a GPU computes while one byte leaves its node of 8 GPUs, which share the array."""
    h100 = chip("h100", peak__bf16=flops_per_s, scale_out__egress=node_bytes_per_s / 8)
    return thresholds.alpha(h100, "scale_out")


def _alpha_in_node(flops_per_s: float, egress: float) -> float:
    """FLOPs that a GPU computes while it sends one byte inside its node."""
    return thresholds.alpha(chip("h100", peak__bf16=flops_per_s, node__egress=egress), "node")


@solves("gpus-dp-thresholds", formula="B/X > C / W_gpu; C / W_node; times GPUs")
def data_parallel(given: Given) -> Answer:
    in_node = thresholds.data_parallel_tokens(_alpha_in_node(given["C"], given["gpu"]))
    across_nodes = thresholds.data_parallel_tokens(_alpha_across_nodes(given["C"], given["node"]))
    h800 = thresholds.data_parallel_tokens(_alpha_in_node(given["C"], given["h800"]))
    return {
        "node": in_node,
        "beyond": across_nodes,
        "llama": across_nodes * given["gpus"],
        "h800": h800,
        "h800_batch": h800 * given["h800_gpus"],
    }


@solves("gpus-deepseek-batch", formula="sequences * length; sequences * length / GPUs")
def batch(given: Given) -> Answer:
    tokens = Train(batch=given["seqs"], seq=given["seq_len"]).tokens_per_step
    return [tokens, tokens / given["gpus"]]


@solves("gpus-moe-threshold", formula="B/X > alpha E / k")
def experts(given: Given) -> Answer:
    return thresholds.data_parallel_tokens(
        given["dense"], n_experts=given["E"], experts_per_token=given["k"]
    )


@solves("gpus-two-node-dp", formula="B/X > alpha (X-1) / X")
def two_nodes(given: Given) -> Answer:
    return thresholds.data_parallel_tokens(given["dense"], replicas=given["X"])


@solves("gpus-tp-limit", formula="Y < F / alpha; two nodes F / alpha + 8")
def tensor_limits(given: Given) -> Answer:
    return [
        thresholds.tensor_limit(given["F"], given["node"]),
        thresholds.tensor_limit(given["F"], given["beyond"]),
        thresholds.tensor_limit(given["F"], given["beyond"], inner=8),
    ]


@solves("gpus-known-layouts", formula="product of the mesh")
def layouts(given: Given) -> Answer:
    expert, pipe, data = given["deepseek"]
    tensor, stages, replicas = given["llama"]
    return [
        Mesh(expert=expert, pipe=pipe, data=data).n_chips,
        Mesh(tensor=tensor, pipe=stages, data=replicas).n_chips,
    ]


@solves("gpus-q5-1", formula="C / W_gpu; C / W_node")
def b200(given: Given) -> Answer:
    return [
        _alpha_in_node(given["C"], given["gpu"]),
        _alpha_across_nodes(given["C"], given["node"]),
    ]


@solves("gpus-nvl72-gain", formula="(C / W_node) of an H100 node / (C / W_node) of an NVL72")
def rack_gain(given: Given) -> Answer:
    h100, nvl72 = critical_intensity(column(given["C"]), column(given["node"]))
    return h100 / nvl72


@solves("gpus-q5-2-time", formula="N C MFU; 6 P tokens / (N C MFU)")
def run_time(given: Given) -> Answer:
    flops = training_flops(given["params"], given["tokens"])
    seconds = compute_s(flops, given["gpus"], given["C"], given["mfu"])
    return [flops / seconds, seconds, seconds / DAY]


@solves("gpus-price-ratio", formula="figure by figure")
def price_ratio(given: Given) -> Answer:
    chips = []
    for index, name in enumerate(("h200", "v5p")):
        figures = {
            "peak__bf16": given["flops"][index],
            "hbm__capacity": given["hbm"][index],
            "price__chip_hour": given["usd"][index],
        }
        chips.append(chip(name, **figures))
    h200, v5p = chips
    ratios = {row.figure: row.ratio for row in diff(v5p, h200)}
    return [ratios["peak.bf16"], ratios["hbm.capacity"], ratios["price.chip_hour"]]
