"""Section 6, training LLaMA 3 on TPUs."""

from __future__ import annotations

from shardwise.book.givens import column, dense, given_chip
from shardwise.book.registry import Answer, Given, solves
from shardwise.estimate.chip_memory import Memory
from shardwise.formulas import thresholds
from shardwise.formulas.flops import compute_s, training_flops
from shardwise.formulas.memory import chips_to_hold, saved_bytes
from shardwise.formulas.thresholds import alpha
from shardwise.models import count
from shardwise.strategy.mesh import Mesh
from shardwise.units import DAY, YEAR
from shardwise.workload import Train

JOB = Train(batch=1, seq=1, master=None)  # bf16 weights, Adam moments in fp32


@solves("atrain-params-70b", formula="3DFL, 2VD, 2D(N+K)HL")
def by_part(g: Given) -> Answer:
    parts = count.parameters(dense(g["model"]))
    return {
        "ffw": parts.mlp,
        "vocab": parts.embedding + parts.unembedding,
        "attn": parts.attention,
        "total": parts.total,
    }


@solves("atrain-ffw-share", formula="3DFL / P")
def mlp_share(g: Given) -> Answer:
    parts = count.parameters(dense(g["model"]))
    return parts.mlp / parts.total


@solves("atrain-flops-per-token", formula="6P; 6P / C")
def token_cost(g: Given) -> Answer:
    flops = training_flops(g["params"], 1)
    return [flops, compute_s(flops, 1, g["peak_flops_per_s"])]


@solves("atrain-total", formula="6 P tokens; / C")
def whole_run(g: Given) -> Answer:
    flops = training_flops(g["params"], g["tokens"])
    return [flops, compute_s(flops, 1, g["peak_flops_per_s"]) / YEAR]


@solves("atrain-pod-days", formula="FLOPs / (N C MFU)")
def pod_days(g: Given) -> Answer:
    seconds = compute_s(g["total_flops"], g["chips"], g["peak_flops_per_s"], g["mfu"])
    return [seconds, seconds / DAY]


def _memory(g: Given) -> Memory:
    """Memory of all chips together: weights, Adam moments, the checkpoints of every layer."""
    widths = [g["D"]] * g["ckpt_per_layer"]
    return Memory(
        weights=g["params"] * JOB.weight_bytes,
        optimizer=g["params"] * JOB.optimizer_bytes,
        activations=saved_bytes(g["tokens"], g["L"], widths),
        capacity=g.get("hbm_bytes", float("inf")),
    )


@solves("atrain-memory-feb", "atrain-memory-later", formula="2P + 8P + 2 D B n L; / HBM")
def memory(g: Given) -> Answer:
    required = _memory(g)
    return {
        "params": required.weights,
        "optimizer": required.optimizer,
        "ckpt": required.activations,
        "total": required.total,
        "chips": chips_to_hold(required.total, required.capacity),
    }


@solves("atrain-12-checkpoints", formula="(2P + 8P + 2 D B n L) / N")
def memory_per_chip(g: Given) -> Answer:
    return _memory(g).total / g["chips"]


@solves("atrain-per-chip-memory", formula="total / N", uses_library=False)
def totals_per_chip(g: Given) -> Answer:
    return column(g["totals"]) / g["chips"]


@solves("atrain-sequences", formula="B / length", uses_library=False)
def sequences(g: Given) -> Answer:
    return g["tokens"] / column(g["seq_len"])


@solves("atrain-fsdp-per-chip", formula="B / N against alpha / 3")
def pure_fsdp(g: Given) -> Answer:
    per_chip = g["tokens"] / g["chips"]
    threshold = thresholds.data_parallel_tokens(alpha(given_chip(g)), n_axes=g["axes"])
    return {"per_chip": per_chip, "threshold": threshold, "ok": per_chip > threshold}


@solves("atrain-mixed-threshold", formula="4 alpha^2 / (Mx My F); alpha^2 / (Mx My F)")
def fsdp_and_tensor(g: Given) -> Answer:
    sequential = thresholds.mixed_tokens(alpha(given_chip(g)), g["F"], axes=g["MxMy"])
    overlapped = thresholds.mixed_tokens(alpha(given_chip(g)), g["F"], axes=g["MxMy"], overlap=True)
    return {
        "sum_rule": sequential,
        "overlap_rule": overlapped,
        "ok_sum": g["per_chip"] > sequential,
        "ok_overlap": g["per_chip"] > overlapped,
    }


@solves("atrain-xopt", formula="X_opt = sqrt(B/F * Mx/My * N)")
def best_split(g: Given) -> Answer:
    return thresholds.best_fsdp(g["N"], g["B"], g["F"], mx=g["Mx"], my=g["My"])


@solves("atrain-split-takeaway", formula="N = 1024 * 2 * 4; 8960 - N")
def chosen_split(g: Given) -> Answer:
    data, context, tensor = g["split"]
    n_chips = Mesh(data=data, context=context, tensor=tensor).n_chips
    return [n_chips, g["pod"] - n_chips]
