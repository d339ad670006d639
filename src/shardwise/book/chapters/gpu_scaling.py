"""Section 12, how to think about GPUs: where splits stop being compute-bound."""

from __future__ import annotations

from shardwise.book.givens import chip
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import thresholds
from shardwise.formulas.flops import compute_s, training_flops
from shardwise.formulas.roofline import critical_intensity
from shardwise.hardware import diff
from shardwise.strategy.mesh import Mesh
from shardwise.units import DAY
from shardwise.workload import Train


def _beyond(flops_per_s: float, node_bytes_per_s: float) -> float:
    """alpha of arrays that leave a node of 8 sharded over it."""
    made = chip("h100", peak__bf16=flops_per_s, scale_out__egress=node_bytes_per_s / 8)
    return thresholds.alpha(made, "scale_out")


def _inside(flops_per_s: float, egress: float) -> float:
    return thresholds.alpha(chip("h100", peak__bf16=flops_per_s, node__egress=egress), "node")


@solves("gpus-dp-thresholds", by="B/X > C / W_gpu; C / W_node; times GPUs")
def data_parallel(g: Given) -> Answer:
    inside = thresholds.data_parallel_tokens(_inside(g["C"], g["gpu"]))
    beyond = thresholds.data_parallel_tokens(_beyond(g["C"], g["node"]))
    h800 = thresholds.data_parallel_tokens(_inside(g["C"], g["h800"]))
    return {
        "node": inside,
        "beyond": beyond,
        "llama": beyond * g["gpus"],
        "h800": h800,
        "h800_batch": h800 * g["h800_gpus"],
    }


@solves("gpus-deepseek-batch", by="sequences * length; / GPUs")
def batch(g: Given) -> Answer:
    tokens = Train(batch=g["seqs"], seq=g["seq_len"]).tokens_per_step
    return [tokens, tokens / g["gpus"]]


@solves("gpus-moe-threshold", by="B/X > alpha E / k")
def experts(g: Given) -> Answer:
    return thresholds.data_parallel_tokens(g["dense"], n_experts=g["E"], experts_per_token=g["k"])


@solves("gpus-two-node-dp", by="B/X > alpha (X-1) / X")
def two_nodes(g: Given) -> Answer:
    return thresholds.data_parallel_tokens(g["dense"], replicas=g["X"])


@solves("gpus-tp-limit", by="Y < F / alpha; two nodes F / alpha + 8")
def tensor_limits(g: Given) -> Answer:
    inside, beyond = (thresholds.tensor_limit(g["F"], g[scope]) for scope in ("node", "beyond"))
    return [inside, beyond, thresholds.tensor_limit(g["F"], g["beyond"], inner=8)]


@solves("gpus-known-layouts", by="product of the mesh")
def layouts(g: Given) -> Answer:
    expert, pipe, data = g["deepseek"]
    tensor, stages, replicas = g["llama"]
    meshes = (
        Mesh(expert=expert, pipe=pipe, data=data),
        Mesh(tensor=tensor, pipe=stages, data=replicas),
    )
    return [m.n_chips for m in meshes]


@solves("gpus-q5-1", by="C / W_gpu; C / W_node")
def b200(g: Given) -> Answer:
    return [_inside(g["C"], g["gpu"]), _beyond(g["C"], g["node"])]


@solves("gpus-nvl72-gain", by="(C / W_node) / (C / W_node)")
def rack_gain(g: Given) -> Answer:
    h100, rack = (critical_intensity(c, w) for c, w in zip(g["C"], g["node"], strict=True))
    return h100 / rack


@solves("gpus-q5-2-time", by="N C MFU; 6 P tokens / (N C MFU)")
def run_time(g: Given) -> Answer:
    flops = training_flops(g["params"], g["tokens"])
    seconds = compute_s(flops, g["gpus"], g["C"], g["mfu"])
    return [flops / seconds, seconds, seconds / DAY]


@solves("gpus-price-ratio", by="figure by figure")
def price_ratio(g: Given) -> Answer:
    h200, v5p = (
        chip(name, peak__bf16=c, hbm__capacity=hbm, price__chip_hour=usd)
        for name, c, hbm, usd in zip(("h200", "v5p"), g["flops"], g["hbm"], g["usd"], strict=True)
    )
    ratios = {row.figure: row.ratio for row in diff(v5p, h200)}
    return [ratios[f] for f in ("peak.bf16", "hbm.capacity", "price.chip_hour")]
