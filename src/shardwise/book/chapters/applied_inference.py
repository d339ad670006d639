"""Section 8, serving LLaMA 3 on TPUs."""

from __future__ import annotations

from shardwise.book.givens import chip, dense
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import cost, inference, memory, thresholds
from shardwise.models import count
from shardwise.search import fit


@solves("ainfer-price-table", by="C / $ per hour; 3600 C / $ per hour")
def prices(g: Given) -> Answer:
    pairs = list(zip(g["flops"], g["usd_per_hour"], strict=True))
    return [
        [cost.rate_per_price(c, usd) for c, usd in pairs],
        [cost.flops_per_usd(c, usd) for c, usd in pairs],
    ]


@solves("ainfer-kv", by="2 L K H; * S; * B; (that + P) / HBM")
def cache(g: Given) -> Answer:
    model = dense(g["model"])
    token = count.kv_bytes_per_token(model, "int8")
    sequence = count.kv_cache_bytes(model, g["context"], "int8")
    batch = g["batch"] * sequence
    return [token, sequence, batch, (batch + g["params"]) / g["hbm_bytes"]]


@solves("ainfer-bs32-memory", by="B KV; + P; ceil(/ HBM); smallest slice")
def smallest_slice(g: Given) -> Answer:
    kv = g["batch"] * count.kv_cache_bytes(dense(g["model"]), g["context"], "int8")
    total = kv + g["params"]
    made = chip("v5e", hbm__capacity=g["hbm_bytes"])
    enough = (n for _, n in fit.sizes(made) if n * g["hbm_bytes"] >= total)
    return {
        "kv": kv,
        "total": total,
        "chips": memory.chips_to_hold(total, g["hbm_bytes"]),
        "slice_chips": next(enough),
    }


@solves("ainfer-bs32-step", by="bytes / (N W_hbm); B / step; / N")
def steps(g: Given) -> Answer:
    found = [
        inference.decode_step(
            g["batch"], 0, g["total_bytes"], n_chips=n, hbm_bytes_per_s=g["hbm_bytes_per_s"]
        )
        for n in g["chips"]
    ]
    return [[s.step_s, s.tokens_per_s, s.tokens_per_s_per_chip] for s in found]


@solves("ainfer-ici-limit", by="Y < 2F / alpha")
def tensor_limit(g: Given) -> Answer:
    return [thresholds.tensor_limit(g["F"], a, n_axes=g["axes"]) for a in g["alpha"]]


@solves("ainfer-full-hbm-step", by="HBM / W_hbm; * 512; P e / (N W_hbm)")
def full_memory(g: Given) -> Answer:
    bandwidth = g["hbm_bytes_per_s"]
    step = inference.full_memory_step_s(g["hbm_bytes"], bandwidth)
    int4 = inference.weight_read_s(
        g["int4_bytes"], 1, n_chips=g["chips"], hbm_bytes_per_s=bandwidth
    )
    return [step, inference.decode_s(step, g["steps"]), int4]


@solves("ainfer-qps", by="B / (step * tokens); / N")
def queries(g: Given) -> Answer:
    rate = inference.query_rate(g["batch"], g["step_s"], g["steps"])
    return [rate, [rate / n for n in g["chips"]]]


@solves("ainfer-prefill", by="2 P T / (N C MFU)")
def prefill(g: Given) -> Answer:
    return inference.prefill_s(
        g["params"],
        g["T"],
        n_chips=g["chips"],
        flops_per_s=g["peak_flops_per_s"],
        mfu=g["mfu"],
    )


@solves("ainfer-eviction", by="B / G; B (P + G) / G")
def eviction(g: Given) -> Answer:
    finished = inference.finished_per_step(g["B"], g["G"])
    return [finished, inference.evicted_per_step(g["B"], g["P"], g["G"])]


@solves("ainfer-pg-ratio", by="t_prefill B / (step G)")
def disaggregation(g: Given) -> Answer:
    return inference.prefill_servers(g["prefill_s"], g["step_s"], g["batch"], g["steps"])


@solves("ainfer-pareto-latency", by="B KV / (N W) + max(2BP / (NC), P e / (N W)); HBM / W")
def pareto(g: Given) -> Answer:
    bandwidth = g["hbm_bytes_per_s"]
    one, saturated = (
        inference.decode_step(
            batch,
            g["kv_per_token"] * g["context"],
            g["params"] * g["param_bytes"],
            n_chips=g["chips"],
            hbm_bytes_per_s=bandwidth,
            params=g["params"],
            flops_per_s=g["peak_flops_per_s"],
        )
        for batch in (1, g["batch_sat"])
    )
    full = inference.full_memory_step_s(g["hbm_bytes"], bandwidth)
    return [one.step_s, full, 1e-3 * saturated.tokens_per_s_per_chip]


@solves("ainfer-kv-dominates", by="S > 2 P W_hbm / (C kv)")
def kv_bound(g: Given) -> Answer:
    return inference.kv_bound_context(
        g["params"],
        g["kv_per_token"],
        hbm_bytes_per_s=g["hbm_bytes_per_s"],
        flops_per_s=g["peak_flops_per_s"],
    )
