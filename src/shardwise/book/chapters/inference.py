"""Section 7, all about Transformer inference."""

from __future__ import annotations

from shardwise.book.givens import chip, column, dense, dtype
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import inference, peaks, roofline, shards, stationary, thresholds
from shardwise.hardware import Chip, System, Torus
from shardwise.models import count
from shardwise.units import GiB


@solves("inference-bcrit-dtypes", "ainfer-batch-thresholds", formula="B_crit = C / W_hbm * e_w / 2")
def critical_batches(g: Given) -> Answer:
    batches = []
    for weight_bytes, peak in g["cases"]:
        weights = dtype(weight_bytes)
        batches.append(roofline.critical_batch(g[peak], g["hbm_bytes_per_s"], weights))
    return batches


@solves("inference-attention-intensity", formula="ST / (S + T)")
def attention_intensity(g: Given) -> Answer:
    return roofline.attention_intensity(column(g["T"]), column(g["S"]))


@solves("inference-attention-prefill-crossover", formula="T / 2 = I_crit")
def prefill_crossover(g: Given) -> Answer:
    return thresholds.attention_prefill_tokens(g["critical_intensity"])


@solves("inference-pop-30b-small", formula="(B KV + P e) / (N W_hbm)")
def small_batch_step(g: Given) -> Answer:
    kv_bytes = g["kv_per_token"] * g["context"]
    step = inference.decode_step(
        g["batch"],
        kv_bytes,
        g["params"] * g["param_bytes"],
        n_chips=g["chips"],
        hbm_bytes_per_s=g["hbm_bytes_per_s"],
        params=g["params"],
        flops_per_s=g["peak_flops_per_s"],
    )
    return [kv_bytes, step.step_s]


@solves("inference-llama2-13b-params", formula="3DFL, 2VD, 2D(N+K)HL; 2 bytes each")
def llama2_13b(g: Given) -> Answer:
    parts = count.parameters(dense(g["model"]))
    return {
        "ffw": parts.mlp,
        "vocab": parts.embedding + parts.unembedding,
        "attn": parts.attention,
        "total": parts.total,
        "bytes": 2 * parts.total,
    }


@solves("inference-llama2-13b-activation", formula="2 T D")
def activation(g: Given) -> Answer:
    return shards.local_bytes("x[T,D]", (g["T"], g["D"]), {}, g["bytes_per_elem"])


@solves("inference-llama2-13b-kv", formula="2 L K H e T; ceil(2P / KV)")
def llama2_13b_kv(g: Given) -> Answer:
    kv_bytes = count.kv_cache_bytes(dense(g["model"]), g["T"], g["bytes_per_elem"])
    return [kv_bytes, inference.caches_to_match(g["param_bytes"], kv_bytes)]


@solves("inference-table-mha", formula="step = (B KV + 2P) / (N W_hbm); B / step")
def batch_table(g: Given) -> Answer:
    batches = column(g["batches"])
    steps = inference.decode_step(
        batches,
        g["kv_per_seq"],
        g["param_bytes"],
        n_chips=g["chips"],
        hbm_bytes_per_s=g["hbm_bytes_per_s"],
    )
    return {
        "kv": batches * g["kv_per_seq"],
        "total": steps.step_s * g["chips"] * g["hbm_bytes_per_s"],
        "step_ms": 1e3 * steps.step_s,
        "tok_s": steps.tokens_per_s,
    }


@solves("inference-cluster-figures", formula="N W_hbm, N C")
def cluster(g: Given) -> Answer:
    v5e = chip("v5e", peak__bf16=g["peak_flops_per_s"], hbm__bandwidth=g["hbm_bytes_per_s"])
    totals = peaks.totals(_line(v5e, g["chips"]))
    return [totals.hbm_bytes_per_s, totals.flops_per_s]


def _line(v5e: Chip, n_chips: int) -> System:
    """A machine of `n_chips` on one torus axis without wraparound."""
    torus = Torus(shape=(n_chips,), wrapped=(False,))
    return System(name="line", chip=v5e, topology=torus)


@solves("inference-prefill-tp", formula="Y < F / alpha")
def prefill_tensor(g: Given) -> Answer:
    return thresholds.tensor_limit(g["F"], column(g["alpha"]))


@solves("inference-decode-tp", formula="Y < F / (B beta), beta = W_hbm / W_ici")
def decode_tensor(g: Given) -> Answer:
    limit = inference.memory_bound_tensor_limit(g["F"], g["B"], g["beta_book"])
    betas = []
    for hbm, ici in zip(g["hbm"], g["ici_bidi"], strict=True):
        betas.append(inference.beta(chip("v5e", hbm__bandwidth=hbm, ici__link=ici / 2)))
    return [limit, *betas]


@solves("inference-prefix-saving", formula="(prompt - cached) / prompt")
def prefix_cache(g: Given) -> Answer:
    return inference.prefill_share(g["tokens"], g["cached"])


@solves("inference-host-cache", formula="8 HBM; host DRAM / (8 HBM)")
def host_cache(g: Given) -> Answer:
    v5e = chip(
        "v5e",
        hbm__capacity=g["hbm_gib"] * GiB,
        host__dram=g["dram_gib"] * GiB,
        host__chips=g["chips"],
    )
    totals = peaks.totals(_line(v5e, g["chips"]))
    hbm_bytes = totals.hbm_bytes or 0.0
    dram_bytes = totals.host_dram_bytes or 0.0
    return [hbm_bytes / GiB, dram_bytes / hbm_bytes]


@solves("inference-q1-params-kv", formula="L(3DF + 2D(N+K)H) + VD; 2 L K H e")
def exercise_model(g: Given) -> Answer:
    model = dense(g["model"], tied=g["tied"])
    return [count.parameters(model).total, count.kv_bytes_per_token(model, g["kv_bytes"])]


@solves("inference-q3-load", formula="P e / (N W_hbm)")
def read_weights(g: Given) -> Answer:
    return inference.weight_read_s(
        g["params"], g["param_bytes"], n_chips=g["chips"], hbm_bytes_per_s=g["hbm_bytes_per_s"]
    )


@solves(
    "inference-q7-optimum", formula="X = sqrt(N/2f), YZ = sqrt(2fN), 2 sqrt(8f) BD / (sqrt(N) W)"
)
def weight_stationary(g: Given) -> Answer:
    best = stationary.best_2d(g["N"], g["F_over_D"])
    return [best.x, best.yz, best.coefficient]


@solves("inference-q7-chips", formula="4BD / (3 W) > sqrt(128) BD / (sqrt(N) W)")
def chips_for_two_dims(g: Given) -> Answer:
    return stationary.chips_for_2d(g["F_over_D"], n_axes=g["axes"])


@solves("inference-appA-latency", formula="2DF; 2DF e / (Y W_hbm)")
def layer_latency(g: Given) -> Answer:
    params = count.parameters(dense(g, gated=False)).mlp
    seconds = inference.weight_read_s(
        params, g["bytes_per_elem"], n_chips=g["ways"], hbm_bytes_per_s=g["hbm_bytes_per_s"]
    )
    return [params, seconds]


@solves("inference-appC-latency", formula="Y W1 T_min; B D; Y > BD / (W1 T_min)")
def latency_bound(g: Given) -> Answer:
    link_bytes_per_s = g["link_oneway_bytes_per_s"]
    hop_s = g["hop_latency_s"]
    buffer = thresholds.latency_bound_bytes(link_bytes_per_s, hop_s, shards=g["ways"])
    activation = shards.local_bytes("x[B,D]", (g["B"], g["D"]), {}, 1)
    degree = inference.latency_bound_degree(
        g["B"], g["D"], link_bytes_per_s_one_way=link_bytes_per_s, hop_s=hop_s
    )
    return {
        "buffer": buffer,
        "activation": activation,
        "latency_bound": activation < buffer,
        "y_limit": degree,
    }
