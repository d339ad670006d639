"""Section 8, serving LLaMA 3 on TPUs."""

from __future__ import annotations

from shardwise.book.givens import chip, column, dense
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import cost, inference, memory, thresholds
from shardwise.models import count
from shardwise.search.machines import machines_of


@solves("ainfer-price-table", formula="C / $ per hour; 3600 C / $ per hour")
def prices(given: Given) -> Answer:
    peaks = column(given["flops"])
    usd_per_hour = column(given["usd_per_hour"])
    return [cost.rate_per_price(peaks, usd_per_hour), cost.flops_per_usd(peaks, usd_per_hour)]


@solves("ainfer-kv", formula="2LKH per token; KV = 2LKH S; B KV; (B KV + P) / HBM")
def cache(given: Given) -> Answer:
    model = dense(given["model"])
    token_bytes = count.kv_bytes_per_token(model, "int8")
    sequence_bytes = count.kv_cache_bytes(model, given["context"], "int8")
    batch_bytes = given["batch"] * sequence_bytes
    n_chips = (batch_bytes + given["params"]) / given["hbm_bytes"]
    return [token_bytes, sequence_bytes, batch_bytes, n_chips]


@solves("ainfer-bs32-memory", formula="B KV; B KV + P; ceil((B KV + P) / HBM); smallest slice")
def smallest_slice(given: Given) -> Answer:
    kv_bytes = given["batch"] * count.kv_cache_bytes(
        dense(given["model"]), given["context"], "int8"
    )
    total_bytes = kv_bytes + given["params"]
    v5e = chip("v5e", hbm__capacity=given["hbm_bytes"])
    sizes = (system.n_chips for system in machines_of(v5e))
    slices = (n for n in sizes if n * given["hbm_bytes"] >= total_bytes)
    return {
        "kv": kv_bytes,
        "total": total_bytes,
        "chips": memory.chips_to_hold(total_bytes, given["hbm_bytes"]),
        "slice_chips": next(slices),
    }


@solves("ainfer-bs32-step", formula="step = bytes / (N W_hbm); B / step; B / (step N)")
def steps(given: Given) -> Answer:
    answers = []
    for n_chips in given["chips"]:
        step = inference.decode_step(
            given["batch"],
            0,
            given["total_bytes"],
            n_chips=n_chips,
            hbm_bytes_per_s=given["hbm_bytes_per_s"],
        )
        answers.append([step.step_s, step.tokens_per_s, step.tokens_per_s_per_chip])
    return answers


@solves("ainfer-ici-limit", formula="Y < 2F / alpha")
def tensor_limit(given: Given) -> Answer:
    return thresholds.tensor_limit(given["F"], column(given["alpha"]), n_axes=given["axes"])


@solves("ainfer-full-hbm-step", formula="step = HBM / W_hbm; 512 step; P e / (N W_hbm)")
def full_memory(given: Given) -> Answer:
    bandwidth = given["hbm_bytes_per_s"]
    step_s = inference.full_memory_step_s(given["hbm_bytes"], bandwidth)
    int4_s = inference.weight_read_s(
        given["int4_bytes"], 1, n_chips=given["chips"], hbm_bytes_per_s=bandwidth
    )
    return [step_s, inference.decode_s(step_s, given["steps"]), int4_s]


@solves("ainfer-qps", formula="B / (step * tokens); B / (step * tokens * N)")
def queries(given: Given) -> Answer:
    rate = inference.query_rate(given["batch"], given["step_s"], given["steps"])
    return [rate, rate / column(given["chips"])]


@solves("ainfer-prefill", formula="2 P T / (N C MFU)")
def prefill(given: Given) -> Answer:
    return inference.prefill_s(
        given["params"],
        given["T"],
        n_chips=given["chips"],
        flops_per_s=given["peak_flops_per_s"],
        mfu=given["mfu"],
    )


@solves("ainfer-eviction", formula="B / G; B (P + G) / G")
def eviction(given: Given) -> Answer:
    finished = inference.finished_per_step(given["B"], given["G"])
    return [finished, inference.evicted_per_step(given["B"], given["P"], given["G"])]


@solves("ainfer-pg-ratio", formula="t_prefill B / (step G)")
def disaggregation(given: Given) -> Answer:
    return inference.prefill_servers(
        given["prefill_s"], given["step_s"], given["batch"], given["steps"]
    )


@solves("ainfer-pareto-latency", formula="B KV / (N W) + max(2BP / (NC), P e / (N W)); HBM / W")
def pareto(given: Given) -> Answer:
    full_memory_s = inference.full_memory_step_s(given["hbm_bytes"], given["hbm_bytes_per_s"])
    throughput = _decode_step(given, given["batch_sat"]).tokens_per_s_per_chip
    return [_decode_step(given, 1).step_s, full_memory_s, 1e-3 * throughput]


def _decode_step(given: Given, batch: int) -> inference.DecodeStep:
    return inference.decode_step(
        batch,
        given["kv_per_token"] * given["context"],
        given["params"] * given["param_bytes"],
        n_chips=given["chips"],
        hbm_bytes_per_s=given["hbm_bytes_per_s"],
        params=given["params"],
        flops_per_s=given["peak_flops_per_s"],
    )


@solves("ainfer-kv-dominates", formula="S > 2 P W_hbm / (C kv)")
def kv_bound(given: Given) -> Answer:
    return inference.kv_bound_context(
        given["params"],
        given["kv_per_token"],
        hbm_bytes_per_s=given["hbm_bytes_per_s"],
        flops_per_s=given["peak_flops_per_s"],
    )
