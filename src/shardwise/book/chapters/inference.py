"""Section 7, all about Transformer inference."""

from __future__ import annotations

from shardwise.book.givens import chip, column, dense, dtype
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import inference, peaks, roofline, shards, stationary, thresholds
from shardwise.hardware import Chip, System, Torus
from shardwise.models import count
from shardwise.units import GiB


@solves("inference-bcrit-dtypes", "ainfer-batch-thresholds", formula="B_crit = C / W_hbm * e_w / 2")
def critical_batches(given: Given) -> Answer:
    batches = []
    for weight_bytes, peak in given["cases"]:
        weights = dtype(weight_bytes)
        batches.append(roofline.critical_batch(given[peak], given["hbm_bytes_per_s"], weights))
    return batches


@solves("inference-attention-intensity", formula="ST / (S + T)")
def attention_intensity(given: Given) -> Answer:
    return roofline.attention_intensity(column(given["T"]), column(given["S"]))


@solves("inference-attention-prefill-crossover", formula="T / 2 = I_crit")
def prefill_crossover(given: Given) -> Answer:
    return thresholds.attention_prefill_tokens(given["critical_intensity"])


@solves("inference-pop-30b-small", formula="(B KV + P e) / (N W_hbm)")
def small_batch_step(given: Given) -> Answer:
    kv_bytes = given["kv_per_token"] * given["context"]
    step = inference.decode_step(
        given["batch"],
        kv_bytes,
        given["params"] * given["param_bytes"],
        n_chips=given["chips"],
        hbm_bytes_per_s=given["hbm_bytes_per_s"],
        params=given["params"],
        flops_per_s=given["peak_flops_per_s"],
    )
    return [kv_bytes, step.step_s]


@solves("inference-llama2-13b-params", formula="3DFL, 2VD, 2D(N+K)HL; 2 bytes each")
def llama2_13b(given: Given) -> Answer:
    parts = count.parameters(dense(given["model"]))
    return {
        "ffw": parts.mlp,
        "vocab": parts.embedding + parts.unembedding,
        "attn": parts.attention,
        "total": parts.total,
        "bytes": 2 * parts.total,
    }


@solves("inference-llama2-13b-activation", formula="2 T D")
def activation(given: Given) -> Answer:
    return shards.local_bytes("x[T,D]", (given["T"], given["D"]), {}, given["bytes_per_elem"])


@solves("inference-llama2-13b-kv", formula="2 L K H e T; ceil(2P / KV)")
def llama2_13b_kv(given: Given) -> Answer:
    kv_bytes = count.kv_cache_bytes(dense(given["model"]), given["T"], given["bytes_per_elem"])
    return [kv_bytes, inference.caches_to_match(given["param_bytes"], kv_bytes)]


@solves("inference-table-mha", formula="step = (B KV + 2P) / (N W_hbm); B / step")
def batch_table(given: Given) -> Answer:
    batches = column(given["batches"])
    steps = inference.decode_step(
        batches,
        given["kv_per_seq"],
        given["param_bytes"],
        n_chips=given["chips"],
        hbm_bytes_per_s=given["hbm_bytes_per_s"],
    )
    return {
        "kv": batches * given["kv_per_seq"],
        "total": steps.step_s * given["chips"] * given["hbm_bytes_per_s"],
        "step_ms": 1e3 * steps.step_s,
        "tok_s": steps.tokens_per_s,
    }


@solves("inference-cluster-figures", formula="N W_hbm, N C")
def cluster(given: Given) -> Answer:
    v5e = chip("v5e", peak__bf16=given["peak_flops_per_s"], hbm__bandwidth=given["hbm_bytes_per_s"])
    totals = peaks.totals(_line(v5e, given["chips"]))
    return [totals.hbm_bytes_per_s, totals.flops_per_s]


def _line(v5e: Chip, n_chips: int) -> System:
    """A machine of `n_chips` on one torus axis without wraparound."""
    torus = Torus(shape=(n_chips,), wrapped=(False,))
    return System(name="line", chip=v5e, topology=torus)


@solves("inference-prefill-tp", formula="Y < F / alpha")
def prefill_tensor(given: Given) -> Answer:
    return thresholds.tensor_limit(given["F"], column(given["alpha"]))


@solves("inference-decode-tp", formula="Y < F / (B beta), beta = W_hbm / W_ici")
def decode_tensor(given: Given) -> Answer:
    limit = inference.memory_bound_tensor_limit(given["F"], given["B"], given["beta_book"])
    betas = []
    for hbm, ici in zip(given["hbm"], given["ici_bidi"], strict=True):
        betas.append(inference.beta(chip("v5e", hbm__bandwidth=hbm, ici__link=ici / 2)))
    return [limit, *betas]


@solves("inference-prefix-saving", formula="(prompt - cached) / prompt")
def prefix_cache(given: Given) -> Answer:
    return inference.prefill_share(given["tokens"], given["cached"])


@solves("inference-host-cache", formula="8 HBM; host DRAM / (8 HBM)")
def host_cache(given: Given) -> Answer:
    v5e = chip(
        "v5e",
        hbm__capacity=given["hbm_gib"] * GiB,
        host__dram=given["dram_gib"] * GiB,
        host__chips=given["chips"],
    )
    totals = peaks.totals(_line(v5e, given["chips"]))
    hbm_bytes = totals.hbm_bytes or 0.0
    dram_bytes = totals.host_dram_bytes or 0.0
    return [hbm_bytes / GiB, dram_bytes / hbm_bytes]


@solves("inference-q1-params-kv", formula="L(3DF + 2D(N+K)H) + VD; 2 L K H e")
def exercise_model(given: Given) -> Answer:
    model = dense(given["model"], tied=given["tied"])
    return [count.parameters(model).total, count.kv_bytes_per_token(model, given["kv_bytes"])]


@solves("inference-q3-load", formula="P e / (N W_hbm)")
def read_weights(given: Given) -> Answer:
    return inference.weight_read_s(
        given["params"],
        given["param_bytes"],
        n_chips=given["chips"],
        hbm_bytes_per_s=given["hbm_bytes_per_s"],
    )


@solves(
    "inference-q7-optimum", formula="X = sqrt(N/2f), YZ = sqrt(2fN), 2 sqrt(8f) BD / (sqrt(N) W)"
)
def weight_stationary(given: Given) -> Answer:
    best = stationary.best_2d(given["N"], given["F_over_D"])
    return [best.x, best.yz, best.coefficient]


@solves("inference-q7-chips", formula="4BD / (3 W) > sqrt(128) BD / (sqrt(N) W)")
def chips_for_two_dims(given: Given) -> Answer:
    return stationary.chips_for_2d(given["F_over_D"], n_axes=given["axes"])


@solves("inference-appA-latency", formula="2DF; 2DF e / (Y W_hbm)")
def layer_latency(given: Given) -> Answer:
    params = count.parameters(dense(given, gated=False)).mlp
    seconds = inference.weight_read_s(
        params,
        given["bytes_per_elem"],
        n_chips=given["ways"],
        hbm_bytes_per_s=given["hbm_bytes_per_s"],
    )
    return [params, seconds]


@solves("inference-appC-latency", formula="Y W1 T_min; B D; Y > BD / (W1 T_min)")
def latency_bound(given: Given) -> Answer:
    link_bytes_per_s = given["link_oneway_bytes_per_s"]
    hop_s = given["hop_latency_s"]
    buffer = thresholds.latency_bound_bytes(link_bytes_per_s, hop_s, shards=given["ways"])
    activation = shards.local_bytes("x[B,D]", (given["B"], given["D"]), {}, 1)
    degree = inference.latency_bound_degree(
        given["B"], given["D"], link_bytes_per_s_one_way=link_bytes_per_s, hop_s=hop_s
    )
    return {
        "buffer": buffer,
        "activation": activation,
        "latency_bound": activation < buffer,
        "y_limit": degree,
    }
