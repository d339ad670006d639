"""Section 6, training LLaMA 3 on TPUs."""

from __future__ import annotations

from shardwise.book.givens import axis, dense
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


def _alpha(g: Given) -> float:
    return alpha(axis(g["chip"], g["peak_flops_per_s"], g["ici_bidi_bytes_per_s"]))


@solves("atrain-params-70b", by="3DFL, 2VD, 2D(N+K)HL")
def by_part(g: Given) -> Answer:
    parts = count.parameters(dense(g["model"]))
    return {
        "ffw": parts.mlp,
        "vocab": parts.embedding + parts.unembedding,
        "attn": parts.attention,
        "total": parts.total,
    }


@solves("atrain-ffw-share", by="3DFL / P")
def mlp_share(g: Given) -> Answer:
    parts = count.parameters(dense(g["model"]))
    return parts.mlp / parts.total


@solves("atrain-flops-per-token", by="6P; 6P / C")
def token_cost(g: Given) -> Answer:
    flops = training_flops(g["params"], 1)
    return [flops, compute_s(flops, 1, g["peak_flops_per_s"])]


@solves("atrain-total", by="6 P tokens; / C")
def whole_run(g: Given) -> Answer:
    flops = training_flops(g["params"], g["tokens"])
    return [flops, compute_s(flops, 1, g["peak_flops_per_s"]) / YEAR]


@solves("atrain-pod-days", by="FLOPs / (N C MFU)")
def pod_days(g: Given) -> Answer:
    seconds = compute_s(g["total_flops"], g["chips"], g["peak_flops_per_s"], g["mfu"])
    return [seconds, seconds / DAY]


def _memory(g: Given) -> Memory:
    """Of all chips together: weights, Adam moments, and the checkpoints of every layer."""
    saved = [g["D"]] * g["ckpt_per_layer"]
    return Memory(
        weights=g["params"] * JOB.weight_bytes,
        optimizer=g["params"] * JOB.optimizer_bytes,
        activations=saved_bytes(g["tokens"], g["L"], saved),
        capacity=g.get("hbm_bytes", float("inf")),
    )


@solves("atrain-memory-feb", "atrain-memory-later", by="2P + 8P + 2 D B n L; / HBM")
def memory(g: Given) -> Answer:
    held = _memory(g)
    return {
        "params": held.weights,
        "optimizer": held.optimizer,
        "ckpt": held.activations,
        "total": held.total,
        "chips": chips_to_hold(held.total, held.capacity),
    }


@solves("atrain-12-checkpoints", by="(2P + 8P + 2 D B n L) / N")
def memory_of_a_chip(g: Given) -> Answer:
    return _memory(g).total / g["chips"]


@solves("atrain-per-chip-memory", by="total / N", library=False)
def totals_of_a_chip(g: Given) -> Answer:
    return [total / g["chips"] for total in g["totals"]]


@solves("atrain-sequences", by="B / length", library=False)
def sequences(g: Given) -> Answer:
    return [g["tokens"] / length for length in g["seq_len"]]


@solves("atrain-fsdp-per-chip", by="B / N against alpha / 3")
def pure_fsdp(g: Given) -> Answer:
    per_chip = g["tokens"] / g["chips"]
    needed = thresholds.data_parallel_tokens(_alpha(g), n_axes=g["axes"])
    return {"per_chip": per_chip, "threshold": needed, "ok": per_chip > needed}


@solves("atrain-mixed-threshold", by="4 alpha^2 / (Mx My F); alpha^2 / (Mx My F)")
def mixed(g: Given) -> Answer:
    added, overlapped = (
        thresholds.mixed_tokens(_alpha(g), g["F"], axes=g["MxMy"], overlap=o) for o in (False, True)
    )
    return {
        "sum_rule": added,
        "overlap_rule": overlapped,
        "ok_sum": g["per_chip"] > added,
        "ok_overlap": g["per_chip"] > overlapped,
    }


@solves("atrain-xopt", by="X_opt = sqrt(B/F * Mx/My * N)")
def best_split(g: Given) -> Answer:
    return thresholds.best_fsdp(g["N"], g["B"], g["F"], mx=g["Mx"], my=g["My"])


@solves("atrain-split-takeaway", by="1024 * 2 * 4; 8960 - that")
def chosen_split(g: Given) -> Answer:
    data, context, tensor = g["split"]
    used = Mesh(data=data, context=context, tensor=tensor).n_chips
    return [used, g["pod"] - used]
