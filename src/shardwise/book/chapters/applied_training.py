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
def by_part(given: Given) -> Answer:
    parts = count.parameters(dense(given["model"]))
    return {
        "ffw": parts.mlp,
        "vocab": parts.embedding + parts.unembedding,
        "attn": parts.attention,
        "total": parts.total,
    }


@solves("atrain-ffw-share", formula="3DFL / P")
def mlp_share(given: Given) -> Answer:
    parts = count.parameters(dense(given["model"]))
    return parts.mlp / parts.total


@solves("atrain-flops-per-token", formula="6P; 6P / C")
def token_cost(given: Given) -> Answer:
    flops = training_flops(given["params"], 1)
    return [flops, compute_s(flops, 1, given["peak_flops_per_s"])]


@solves("atrain-total", formula="6 P tokens; 6 P tokens / C")
def whole_run(given: Given) -> Answer:
    flops = training_flops(given["params"], given["tokens"])
    return [flops, compute_s(flops, 1, given["peak_flops_per_s"]) / YEAR]


@solves("atrain-pod-days", formula="FLOPs / (N C MFU)")
def pod_days(given: Given) -> Answer:
    seconds = compute_s(
        given["total_flops"], given["chips"], given["peak_flops_per_s"], given["mfu"]
    )
    return [seconds, seconds / DAY]


def _memory(given: Given) -> Memory:
    """Bytes on all chips together: weights, Adam moments, and the activations that layers save."""
    widths = [given["D"]] * given["ckpt_per_layer"]
    return Memory(
        weights=given["params"] * JOB.weight_bytes,
        optimizer=given["params"] * JOB.optimizer_bytes,
        activations=saved_bytes(given["tokens"], given["L"], widths),
        capacity=given.get("hbm_bytes", float("inf")),
    )


@solves(
    "atrain-memory-feb", "atrain-memory-later", formula="2P + 8P + 2 D B n L; chips = total / HBM"
)
def memory(given: Given) -> Answer:
    required = _memory(given)
    return {
        "params": required.weights,
        "optimizer": required.optimizer,
        "ckpt": required.activations,
        "total": required.total,
        "chips": chips_to_hold(required.total, required.capacity),
    }


@solves("atrain-12-checkpoints", formula="(2P + 8P + 2 D B n L) / N")
def memory_per_chip(given: Given) -> Answer:
    return _memory(given).total / given["chips"]


@solves("atrain-per-chip-memory", formula="total / N", uses_library=False)
def totals_per_chip(given: Given) -> Answer:
    return column(given["totals"]) / given["chips"]


@solves("atrain-sequences", formula="B / length", uses_library=False)
def sequences(given: Given) -> Answer:
    return given["tokens"] / column(given["seq_len"])


@solves("atrain-fsdp-per-chip", formula="B / N against alpha / 3")
def pure_fsdp(given: Given) -> Answer:
    per_chip = given["tokens"] / given["chips"]
    threshold = thresholds.data_parallel_tokens(alpha(given_chip(given)), n_axes=given["axes"])
    return {"per_chip": per_chip, "threshold": threshold, "ok": per_chip > threshold}


@solves("atrain-mixed-threshold", formula="4 alpha^2 / (Mx My F); alpha^2 / (Mx My F)")
def fsdp_and_tensor(given: Given) -> Answer:
    sequential = thresholds.mixed_tokens(alpha(given_chip(given)), given["F"], axes=given["MxMy"])
    overlapped = thresholds.mixed_tokens(
        alpha(given_chip(given)), given["F"], axes=given["MxMy"], overlap=True
    )
    return {
        "sum_rule": sequential,
        "overlap_rule": overlapped,
        "ok_sum": given["per_chip"] > sequential,
        "ok_overlap": given["per_chip"] > overlapped,
    }


@solves("atrain-xopt", formula="X_opt = sqrt(B/F * Mx/My * N)")
def best_split(given: Given) -> Answer:
    return thresholds.best_fsdp(given["N"], given["B"], given["F"], mx=given["Mx"], my=given["My"])


@solves("atrain-split-takeaway", formula="N = 1024 * 2 * 4; 8960 - N")
def chosen_split(given: Given) -> Answer:
    data, context, tensor = given["split"]
    n_chips = Mesh(data=data, context=context, tensor=tensor).n_chips
    return [n_chips, given["pod"] - n_chips]
