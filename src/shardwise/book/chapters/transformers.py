"""Section 4, all the Transformer math."""

from __future__ import annotations

from shardwise.book.givens import SIDE, dense
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import flops, memory, roofline
from shardwise.formulas.thresholds import score_crossover
from shardwise.models import Attention, Layer, LayerGroup, ModelConfig, Moe, count
from shardwise.models.weights import layer_weights
from shardwise.ops.notation import parse_einsum

NORMS = {1: "shared", 2: "pre", 4: "both"}  # how the library names that many norms a layer


@solves("transformers-dot-counts", by="2P, 2NP, 2NPM")
def products(g: Given) -> Answer:
    texts = ("x[P] . y[P] -> z[]", "A[N,P] . x[P] -> y[N]", "A[N,P] . B[P,M] -> C[N,M]")
    return [parse_einsum(text).flops(g) for text in texts]


@solves("transformers-einsum-rule", by="2 GHIJMNKL: every distinct dim once")
def contraction(g: Given) -> Answer:
    return parse_einsum("C[G,H,I,J,K,L] . D[G,H,M,N,K,L] -> A[G,H,I,J,M,N]").flops(g)


@solves("transformers-q3-einsum", by="2 IJKLMNO")
def contraction_q3(g: Given) -> Answer:
    return parse_einsum("A[I,J,K,L] . B[I,J,M,N,O] -> C[K,L,M,N,O]").flops(g)


@solves("transformers-train-multiplier", by="2NPM + 4NPM = 6NPM")
def training_multiplier(g: Given) -> Answer:
    einsum = parse_einsum("A[N,P] . B[P,M] -> C[N,M]")
    forward, backward = einsum.flops(g), sum(d.flops(g) for d in einsum.gradients())
    return [forward, backward, forward + backward]


@solves("transformers-mlp-row", by="3DF, 18BTDF")
def mlp(g: Given) -> Answer:
    model = dense(g)
    flops = count.TRAINING_PASSES * g["tokens"] * count.flops(model, SIDE).mlp
    return [count.parameters(model).mlp, flops]


@solves("transformers-attn-row", by="4DNH, 2D(N+K)H")
def attention(g: Given) -> Answer:
    full = dense({**g, "F": SIDE, "K": g["N"]})
    grouped = dense({**g, "F": SIDE})
    return [count.parameters(m).attention for m in (full, grouped)]


@solves("transformers-vocab-row", by="6BTDV, 12BTDV")
def vocabulary(g: Given) -> Answer:
    model = dense({**g, "F": SIDE})
    unembedding = count.TRAINING_PASSES * count.flops(model, SIDE).unembedding
    parts = count.parameters(model)
    both = flops.training_flops(parts.embedding + parts.unembedding, g["tokens"])
    return [unembedding * g["tokens"], both]


@solves("transformers-attention-fraction", by="T / 8D, scores over matmuls")
def score_share(g: Given) -> Answer:
    model = dense({"D": g["D"], "F": g["F_over_D"] * g["D"]})
    found = [count.flops(model, t, causal=False) for t in g["T"]]
    return [f.scores / (f.attention + f.mlp) for f in found]


@solves("transformers-gemma-crossover", by="T = 8D")
def matmul_crossover(g: Given) -> Answer:
    return score_crossover(dense({"D": g["D"], "F": 4 * g["D"]}))


@solves("transformers-q5-crossover", by="T = 2D")
def projection_crossover(g: Given) -> Answer:
    return score_crossover(dense({"D": g["D"], "F": SIDE}), against="projections")


@solves("transformers-causal-discount", by="1/2; T = 16D")
def causal(g: Given) -> Answer:
    model = dense({"D": 1024, "F": g["F_over_D"] * 1024})
    masked, full = (count.flops(model, 8192, causal=c).scores for c in (True, False))
    return [masked / full, score_crossover(model, causal=True) / model.d_model]


@solves("transformers-activation-checkpoints", by="e * saved * B T D L")
def checkpoints(g: Given) -> Answer:
    saved = [[g["D"]] * n for n in g["saved_per_layer"]]
    return [memory.saved_bytes(g["tokens"], g["L"], w, g["bytes_per_elem"]) for w in saved]


@solves("transformers-remat-flops", by="6 and 8 per parameter and token")
def recompute(g: Given) -> Answer:
    return [flops.training_flops(1, 1, recompute=again) for again in (False, True)]


def _cache(n_layers: int, width: int) -> ModelConfig:
    """A model whose keys have `width` elements a layer: K H of the book."""
    return dense({"L": n_layers, "D": width, "F": SIDE, "N": 1})


@solves("transformers-kv-8gib", by="2 S L KH e")
def kv_cache(g: Given) -> Answer:
    return count.kv_cache_bytes(_cache(g["L"], g["KH"]), g["S"], g["bytes_per_elem"])


@solves("transformers-q1-kv", by="2 L NH e")
def kv_per_token(g: Given) -> Answer:
    return count.kv_bytes_per_token(_cache(g["L"], g["NH"]), g["bytes_per_elem"])


@solves("transformers-q1-params", by="L(3DF + 4DNH + D) + 2DV + D")
def parameters(g: Given) -> Answer:
    return count.parameters(
        ModelConfig.dense(
            n_layers=g["L"],
            d_model=g["D"],
            d_ff=g["F"],
            n_heads=1,
            d_head=g["NH"],
            vocab=g["V"],
            norms=NORMS[g["norms_per_layer"]],
        )
    ).total


@solves("transformers-q1-attn-fraction", by="4DNH / (4DNH + 3DF); over all parameters")
def attention_share(g: Given) -> Answer:
    parts = count.parameters(dense(g))
    return [parts.attention / (parts.attention + parts.mlp), parts.attention / parts.total]


@solves("transformers-q4-intensity", by="TSG / (TG + S)")
def attention_intensity(g: Given) -> Answer:
    pairs = zip(g["T"], g["S"], strict=True)
    return [roofline.attention_intensity(t, s, g["G"]) for t, s in pairs]


@solves("transformers-layernorm-params", by="2D")
def norms(g: Given) -> Answer:
    model = ModelConfig.dense(
        n_layers=1, d_model=g["D"], d_ff=SIDE, n_heads=1, vocab=SIDE, norms=NORMS[g["norms"]]
    )
    weights = layer_weights(model, model.main_layer)
    return sum(w.size for w in weights if w.part == "norm")


@solves("transformers-moe-params", by="E 3DF stored, k 3DF active")
def experts(g: Given) -> Answer:
    layer = Layer(
        attention=Attention(n_heads=1, n_kv_heads=1, d_head=1),
        ffn=Moe(n_experts=g["E"], experts_per_token=g["k"], d_ff=g["F"]),
    )
    model = ModelConfig(
        name="moe", d_model=g["D"], vocab=1, groups=(LayerGroup(layer=layer, count=1),)
    )
    routed = [w for w in layer_weights(model, layer) if w.part == "moe" and w.name != "router"]
    shares = [(w.size, *count.used_share(layer, w)) for w in routed]
    return [sum(n for n, _, _ in shares), sum(n * used // of for n, used, of in shares)]


@solves("transformers-6nd", by="6 * params * tokens")
def six_nd(g: Given) -> Answer:
    return flops.training_flops(g["params"], g["tokens"])
