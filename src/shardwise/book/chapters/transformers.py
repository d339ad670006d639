"""Section 4, all the Transformer math."""

from __future__ import annotations

from shardwise.book.givens import UNIT_DIM, column, dense
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import flops, memory, roofline
from shardwise.formulas.thresholds import score_crossover
from shardwise.models import Attention, Layer, LayerGroup, ModelConfig, Moe, count
from shardwise.models.weights import layer_weights
from shardwise.ops.notation import parse_einsum

NORMS = {1: "shared", 2: "pre", 4: "both"}  # number of norms per layer -> `Layer.norms`


@solves("transformers-dot-counts", formula="2P, 2NP, 2NPM")
def products(given: Given) -> Answer:
    einsums = ("x[P] . y[P] -> z[]", "A[N,P] . x[P] -> y[N]", "A[N,P] . B[P,M] -> C[N,M]")
    return [parse_einsum(einsum).flops(given) for einsum in einsums]


@solves("transformers-einsum-rule", formula="2 GHIJMNKL: every distinct dim once")
def contraction(given: Given) -> Answer:
    return parse_einsum("C[G,H,I,J,K,L] . D[G,H,M,N,K,L] -> A[G,H,I,J,M,N]").flops(given)


@solves("transformers-q3-einsum", formula="2 IJKLMNO")
def contraction_q3(given: Given) -> Answer:
    return parse_einsum("A[I,J,K,L] . B[I,J,M,N,O] -> C[K,L,M,N,O]").flops(given)


@solves("transformers-train-multiplier", formula="2NPM + 4NPM = 6NPM")
def training_multiplier(given: Given) -> Answer:
    einsum = parse_einsum("A[N,P] . B[P,M] -> C[N,M]")
    forward = einsum.flops(given)
    backward = sum(gradient.flops(given) for gradient in einsum.gradients())
    return [forward, backward, forward + backward]


@solves("transformers-mlp-row", formula="3DF, 18BTDF")
def mlp(given: Given) -> Answer:
    model = dense(given)
    flops = count.TRAINING_PASSES * given["tokens"] * count.flops(model, UNIT_DIM).mlp
    return [count.parameters(model).mlp, flops]


@solves("transformers-attn-row", formula="4DNH, 2D(N+K)H")
def attention(given: Given) -> Answer:
    full = dense({**given, "F": UNIT_DIM, "K": given["N"]})
    grouped = dense({**given, "F": UNIT_DIM})
    return [count.parameters(full).attention, count.parameters(grouped).attention]


@solves("transformers-vocab-row", formula="6BTDV, 12BTDV")
def vocabulary(given: Given) -> Answer:
    model = dense({**given, "F": UNIT_DIM})
    unembedding = count.TRAINING_PASSES * count.flops(model, UNIT_DIM).unembedding
    parts = count.parameters(model)
    rule_of_thumb = flops.training_flops(parts.embedding + parts.unembedding, given["tokens"])
    return [unembedding * given["tokens"], rule_of_thumb]


@solves("transformers-attention-fraction", formula="T / 8D, scores over matmuls")
def score_share(given: Given) -> Answer:
    model = dense({"D": given["D"], "F": given["F_over_D"] * given["D"]})
    shares = []
    for seq in given["T"]:
        parts = count.flops(model, seq, causal=False)
        shares.append(parts.scores / (parts.attention + parts.mlp))
    return shares


@solves("transformers-gemma-crossover", formula="T = 8D")
def matmul_crossover(given: Given) -> Answer:
    return score_crossover(dense({"D": given["D"], "F": 4 * given["D"]}))


@solves("transformers-q5-crossover", formula="T = 2D")
def projection_crossover(given: Given) -> Answer:
    return score_crossover(dense({"D": given["D"], "F": UNIT_DIM}), against="projections")


@solves("transformers-causal-discount", formula="1/2; T = 16D")
def causal(given: Given) -> Answer:
    model = dense({"D": 1024, "F": given["F_over_D"] * 1024})
    causal_flops = count.flops(model, 8192).scores
    full_flops = count.flops(model, 8192, causal=False).scores
    return [causal_flops / full_flops, score_crossover(model, causal=True) / model.d_model]


@solves("transformers-activation-checkpoints", formula="e * saved * B T D L")
def checkpoints(given: Given) -> Answer:
    widths = [column(given["saved_per_layer"]) * given["D"]]
    return memory.saved_bytes(given["tokens"], given["L"], widths, given["bytes_per_elem"])


@solves("transformers-remat-flops", formula="6 and 8 per parameter and token")
def recompute(given: Given) -> Answer:
    return [flops.training_flops(1, 1), flops.training_flops(1, 1, recompute=True)]


def _model_with_keys(n_layers: int, width: int) -> ModelConfig:
    """A model whose keys have `width` elements per layer: K H of the book."""
    return dense({"L": n_layers, "D": width, "F": UNIT_DIM, "N": 1})


@solves("transformers-kv-8gib", formula="2 S L KH e")
def kv_cache(given: Given) -> Answer:
    return count.kv_cache_bytes(
        _model_with_keys(given["L"], given["KH"]), given["S"], given["bytes_per_elem"]
    )


@solves("transformers-q1-kv", formula="2 L NH e")
def kv_per_token(given: Given) -> Answer:
    return count.kv_bytes_per_token(
        _model_with_keys(given["L"], given["NH"]), given["bytes_per_elem"]
    )


@solves("transformers-q1-params", formula="L(3DF + 4DNH + D) + 2DV + D")
def parameters(given: Given) -> Answer:
    return count.parameters(
        ModelConfig.dense(
            n_layers=given["L"],
            d_model=given["D"],
            d_ff=given["F"],
            n_heads=1,
            d_head=given["NH"],
            vocab=given["V"],
            norms=NORMS[given["norms_per_layer"]],
        )
    ).total


@solves("transformers-q1-attn-fraction", formula="4DNH / (4DNH + 3DF); over all parameters")
def attention_share(given: Given) -> Answer:
    parts = count.parameters(dense(given))
    return [parts.attention / (parts.attention + parts.mlp), parts.attention / parts.total]


@solves("transformers-q4-intensity", formula="TSG / (TG + S)")
def attention_intensity(given: Given) -> Answer:
    return roofline.attention_intensity(column(given["T"]), column(given["S"]), given["G"])


@solves("transformers-layernorm-params", formula="2D")
def norms(given: Given) -> Answer:
    model = ModelConfig.dense(
        n_layers=1,
        d_model=given["D"],
        d_ff=UNIT_DIM,
        n_heads=1,
        vocab=UNIT_DIM,
        norms=NORMS[given["norms"]],
    )
    weights = layer_weights(model, model.main_layer)
    return sum(weight.size for weight in weights if weight.part == "norm")


@solves("transformers-moe-params", formula="E 3DF stored, k 3DF active")
def experts(given: Given) -> Answer:
    layer = Layer(
        attention=Attention(n_heads=1, n_kv_heads=1, d_head=1),
        ffn=Moe(n_experts=given["E"], experts_per_token=given["k"], d_ff=given["F"]),
    )
    model = ModelConfig(
        name="moe", d_model=given["D"], vocab=1, groups=(LayerGroup(layer=layer, count=1),)
    )
    stored = 0
    active = 0
    for weight in layer_weights(model, layer):
        if weight.part == "moe" and weight.name != "router":
            n_used, n_experts = count.used_share(layer, weight)
            stored += weight.size
            active += weight.size * n_used // n_experts
    return [stored, active]


@solves("transformers-6nd", formula="6 * params * tokens")
def six_nd(given: Given) -> Answer:
    return flops.training_flops(given["params"], given["tokens"])
