"""Section 7, all about Transformer inference."""

from __future__ import annotations

from shardwise.book.givens import chip, dense, dtype
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import inference, peaks, roofline, shards, stationary, thresholds
from shardwise.hardware import Chip, System, Torus
from shardwise.models import count
from shardwise.units import GiB


@solves("inference-bcrit-dtypes", "ainfer-batch-thresholds", by="B_crit = C / W_hbm * e_w / 2")
def critical_batches(g: Given) -> Answer:
    return [
        roofline.critical_batch(g[compute], g["hbm_bytes_per_s"], dtype(weights))
        for weights, compute in g["cases"]
    ]


@solves("inference-attention-intensity", by="ST / (S + T)")
def attention_intensity(g: Given) -> Answer:
    pairs = zip(g["T"], g["S"], strict=True)
    return [roofline.attention_intensity(t, s) for t, s in pairs]


@solves("inference-attention-prefill-crossover", by="T / 2 = I_crit")
def prefill_crossover(g: Given) -> Answer:
    return thresholds.attention_prefill_tokens(g["critical_intensity"])


@solves("inference-pop-30b-small", by="(B KV + P e) / (N W_hbm)")
def small_batch_step(g: Given) -> Answer:
    kv = g["kv_per_token"] * g["context"]
    step = inference.decode_step(
        g["batch"],
        kv,
        g["params"] * g["param_bytes"],
        n_chips=g["chips"],
        hbm_bytes_per_s=g["hbm_bytes_per_s"],
        params=g["params"],
        flops_per_s=g["peak_flops_per_s"],
    )
    return [kv, step.step_s]


@solves("inference-llama2-13b-params", by="3DFL, 2VD, 2D(N+K)HL; 2 bytes each")
def llama2_13b(g: Given) -> Answer:
    parts = count.parameters(dense(g["model"]))
    return {
        "ffw": parts.mlp,
        "vocab": parts.embedding + parts.unembedding,
        "attn": parts.attention,
        "total": parts.total,
        "bytes": 2 * parts.total,
    }


@solves("inference-llama2-13b-activation", by="2 T D")
def activation(g: Given) -> Answer:
    return shards.local_bytes("x[T,D]", (g["T"], g["D"]), {}, g["bytes_per_elem"])


@solves("inference-llama2-13b-kv", by="2 L K H e T; ceil(2P / KV)")
def llama2_13b_kv(g: Given) -> Answer:
    kv = count.kv_cache_bytes(dense(g["model"]), g["T"], g["bytes_per_elem"])
    return [kv, inference.caches_to_match(g["param_bytes"], kv)]


@solves("inference-table-mha", by="step = (B KV + 2P) / (N W_hbm); B / step")
def batch_table(g: Given) -> Answer:
    n_chips, bandwidth, weights = g["chips"], g["hbm_bytes_per_s"], g["param_bytes"]
    steps = [
        inference.decode_step(
            b, g["kv_per_seq"], weights, n_chips=n_chips, hbm_bytes_per_s=bandwidth
        )
        for b in g["batches"]
    ]
    return {
        "kv": [b * g["kv_per_seq"] for b in g["batches"]],
        "total": [s.step_s * n_chips * bandwidth for s in steps],
        "step_ms": [1e3 * s.step_s for s in steps],
        "tok_s": [s.tokens_per_s for s in steps],
    }


@solves("inference-cluster-figures", by="N W_hbm, N C")
def cluster(g: Given) -> Answer:
    made = chip("v5e", peak__bf16=g["peak_flops_per_s"], hbm__bandwidth=g["hbm_bytes_per_s"])
    machine = peaks.totals(_row(made, g["chips"]))
    return [machine.hbm_bytes_per_s, machine.flops_per_s]


def _row(made: Chip, n_chips: int) -> System:
    torus = Torus(shape=(n_chips,), wrapped=(False,))
    return System(name="row", chip=made, topology=torus)


@solves("inference-prefill-tp", by="Y < F / alpha")
def prefill_tensor(g: Given) -> Answer:
    return [thresholds.tensor_limit(g["F"], alpha) for alpha in g["alpha"]]


@solves("inference-decode-tp", by="Y < F / (B beta), beta = W_hbm / W_ici")
def decode_tensor(g: Given) -> Answer:
    pairs = zip(g["hbm"], g["ici_bidi"], strict=True)
    betas = [inference.beta(chip("v5e", hbm__bandwidth=w, ici__link=i / 2)) for w, i in pairs]
    return [inference.memory_bound_tensor_limit(g["F"], g["B"], g["beta_book"]), *betas]


@solves("inference-prefix-saving", by="(prompt - cached) / prompt")
def prefix_cache(g: Given) -> Answer:
    return inference.prefill_share(g["tokens"], g["cached"])


@solves("inference-host-cache", by="8 HBM; host DRAM / that")
def host_cache(g: Given) -> Answer:
    made = chip(
        "v5e",
        hbm__capacity=g["hbm_gib"] * GiB,
        host__dram=g["dram_gib"] * GiB,
        host__chips=g["chips"],
    )
    machine = peaks.totals(_row(made, g["chips"]))
    hbm, dram = machine.hbm_bytes or 0.0, machine.host_dram_bytes or 0.0
    return [hbm / GiB, dram / hbm]


@solves("inference-q1-params-kv", by="L(3DF + 2D(N+K)H) + VD; 2 L K H e")
def exercise_model(g: Given) -> Answer:
    model = dense(g["model"], tied=g["tied"])
    return [count.parameters(model).total, count.kv_bytes_per_token(model, g["kv_bytes"])]


@solves("inference-q3-load", by="P e / (N W_hbm)")
def read_weights(g: Given) -> Answer:
    return inference.weight_read_s(
        g["params"], g["param_bytes"], n_chips=g["chips"], hbm_bytes_per_s=g["hbm_bytes_per_s"]
    )


@solves("inference-q7-optimum", by="X = sqrt(N/2f), YZ = sqrt(2fN), 2 sqrt(8f) BD / (sqrt(N) W)")
def weight_stationary(g: Given) -> Answer:
    best = stationary.best_2d(g["N"], g["F_over_D"])
    return [best.x, best.yz, best.coefficient]


@solves("inference-appA-latency", by="2DF; 2DF e / (Y W_hbm)")
def layer_latency(g: Given) -> Answer:
    params = count.parameters(dense(g, gated=False)).mlp
    seconds = inference.weight_read_s(
        params, g["bytes_per_elem"], n_chips=g["ways"], hbm_bytes_per_s=g["hbm_bytes_per_s"]
    )
    return [params, seconds]


@solves("inference-appC-latency", by="Y W1 T_min; B D; Y > BD / (W1 T_min)")
def latency_bound(g: Given) -> Answer:
    link, hop = g["link_oneway_bytes_per_s"], g["hop_latency_s"]
    buffer = thresholds.latency_bound_bytes(link, hop, shards=g["ways"])
    activation = shards.local_bytes("x[B,D]", (g["B"], g["D"]), {}, 1)
    degree = inference.latency_bound_degree(
        g["B"], g["D"], link_bytes_per_s_one_way=link, hop_s=hop
    )
    return {
        "buffer": buffer,
        "activation": activation,
        "latency_bound": activation < buffer,
        "y_limit": degree,
    }
