"""Section 8, serving LLaMA 3 on TPUs."""

from __future__ import annotations

from shardwise.book.givens import chip, column, dense
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import cost, inference, memory, thresholds
from shardwise.models import count
from shardwise.search import fit


@solves("ainfer-price-table", formula="C / $ per hour; 3600 C / $ per hour")
def prices(g: Given) -> Answer:
    peaks = column(g["flops"])
    usd_per_hour = column(g["usd_per_hour"])
    return [cost.rate_per_price(peaks, usd_per_hour), cost.flops_per_usd(peaks, usd_per_hour)]


@solves("ainfer-kv", formula="2 L K H; * S; * B; (B KV + P) / HBM")
def cache(g: Given) -> Answer:
    model = dense(g["model"])
    token_bytes = count.kv_bytes_per_token(model, "int8")
    sequence_bytes = count.kv_cache_bytes(model, g["context"], "int8")
    batch_bytes = g["batch"] * sequence_bytes
    n_chips = (batch_bytes + g["params"]) / g["hbm_bytes"]
    return [token_bytes, sequence_bytes, batch_bytes, n_chips]


@solves("ainfer-bs32-memory", formula="B KV; + P; ceil(/ HBM); smallest slice")
def smallest_slice(g: Given) -> Answer:
    kv_bytes = g["batch"] * count.kv_cache_bytes(dense(g["model"]), g["context"], "int8")
    total_bytes = kv_bytes + g["params"]
    v5e = chip("v5e", hbm__capacity=g["hbm_bytes"])
    slices = (n for _, n in fit.machine_sizes(v5e) if n * g["hbm_bytes"] >= total_bytes)
    return {
        "kv": kv_bytes,
        "total": total_bytes,
        "chips": memory.chips_to_hold(total_bytes, g["hbm_bytes"]),
        "slice_chips": next(slices),
    }


@solves("ainfer-bs32-step", formula="bytes / (N W_hbm); B / step; / N")
def steps(g: Given) -> Answer:
    answers = []
    for n_chips in g["chips"]:
        step = inference.decode_step(
            g["batch"], 0, g["total_bytes"], n_chips=n_chips, hbm_bytes_per_s=g["hbm_bytes_per_s"]
        )
        answers.append([step.step_s, step.tokens_per_s, step.tokens_per_s_per_chip])
    return answers


@solves("ainfer-ici-limit", formula="Y < 2F / alpha")
def tensor_limit(g: Given) -> Answer:
    return thresholds.tensor_limit(g["F"], column(g["alpha"]), n_axes=g["axes"])


@solves("ainfer-full-hbm-step", formula="HBM / W_hbm; * 512; P e / (N W_hbm)")
def full_memory(g: Given) -> Answer:
    bandwidth = g["hbm_bytes_per_s"]
    step_s = inference.full_memory_step_s(g["hbm_bytes"], bandwidth)
    int4_s = inference.weight_read_s(
        g["int4_bytes"], 1, n_chips=g["chips"], hbm_bytes_per_s=bandwidth
    )
    return [step_s, inference.decode_s(step_s, g["steps"]), int4_s]


@solves("ainfer-qps", formula="B / (step * tokens); / N")
def queries(g: Given) -> Answer:
    rate = inference.query_rate(g["batch"], g["step_s"], g["steps"])
    return [rate, rate / column(g["chips"])]


@solves("ainfer-prefill", formula="2 P T / (N C MFU)")
def prefill(g: Given) -> Answer:
    return inference.prefill_s(
        g["params"],
        g["T"],
        n_chips=g["chips"],
        flops_per_s=g["peak_flops_per_s"],
        mfu=g["mfu"],
    )


@solves("ainfer-eviction", formula="B / G; B (P + G) / G")
def eviction(g: Given) -> Answer:
    finished = inference.finished_per_step(g["B"], g["G"])
    return [finished, inference.evicted_per_step(g["B"], g["P"], g["G"])]


@solves("ainfer-pg-ratio", formula="t_prefill B / (step G)")
def disaggregation(g: Given) -> Answer:
    return inference.prefill_servers(g["prefill_s"], g["step_s"], g["batch"], g["steps"])


@solves("ainfer-pareto-latency", formula="B KV / (N W) + max(2BP / (NC), P e / (N W)); HBM / W")
def pareto(g: Given) -> Answer:
    full_memory_s = inference.full_memory_step_s(g["hbm_bytes"], g["hbm_bytes_per_s"])
    throughput = _decode_step(g, g["batch_sat"]).tokens_per_s_per_chip
    return [_decode_step(g, 1).step_s, full_memory_s, 1e-3 * throughput]


def _decode_step(g: Given, batch: int) -> inference.DecodeStep:
    return inference.decode_step(
        batch,
        g["kv_per_token"] * g["context"],
        g["params"] * g["param_bytes"],
        n_chips=g["chips"],
        hbm_bytes_per_s=g["hbm_bytes_per_s"],
        params=g["params"],
        flops_per_s=g["peak_flops_per_s"],
    )


@solves("ainfer-kv-dominates", formula="S > 2 P W_hbm / (C kv)")
def kv_bound(g: Given) -> Answer:
    return inference.kv_bound_context(
        g["params"],
        g["kv_per_token"],
        hbm_bytes_per_s=g["hbm_bytes_per_s"],
        flops_per_s=g["peak_flops_per_s"],
    )
