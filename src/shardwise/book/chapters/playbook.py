"""The Ultra-Scale Playbook."""

from __future__ import annotations

from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import playbook
from shardwise.formulas.playbook import Layout
from shardwise.units import GB, GiB


@solves("usp-param-count", by="h v + L(12h^2 + 13h) + 2h")
def parameters(g: Given) -> Answer:
    return playbook.gpt_parameters(g["h"], g["v"], g["L"])


@solves("usp-state-memory", by="16 N; 20 N with fp32 gradients")
def state(g: Given) -> Answer:
    return [
        [playbook.state_bytes(n, fp32_gradients=fp32) / GB for n in g["params"]]
        for fp32 in (False, True)
    ]


@solves("usp-activations-none", by="L s b h (34 + 5 n s / h)")
def activations(g: Given) -> Answer:
    return [
        playbook.activation_bytes(n_layers, g["s"], g["b"], h, n_heads) / GiB
        for n_layers, h, n_heads in g["models"]
    ]


@solves("usp-activations-selective", by="34 L s b h")
def activations_selective(g: Given) -> Answer:
    return [
        playbook.activation_bytes(n_layers, g["s"], g["b"], h, recompute="selective") / GiB
        for n_layers, h in g["models"]
    ]


@solves("usp-activations-tp", by="L s b h (10 + 24 / t)")
def activations_tensor(g: Given) -> Answer:
    return [
        playbook.activation_bytes(L, g["s"], g["b"], h, recompute="selective", tensor=t) / GiB
        for L, h, t in g["cases"]
    ]


@solves("usp-zero-shards", by="4P + kP; 4P + kP/N; 2P + (2+k)P/N; (4+k)P/N")
def zero(g: Given) -> Answer:
    return [playbook.zero_bytes(g["params"], g["N"], stage, g["k"]) for stage in range(4)]


@solves("usp-zero-comm", by="2P; 3P")
def zero_traffic(g: Given) -> Answer:
    return [playbook.zero_traffic(stage) for stage in (2, 3)]


@solves("usp-grad-accumulation", by="gbs / (mbs dp)")
def accumulation(g: Given) -> Answer:
    return [playbook.accumulation_steps(g["gbs"], g["mbs"], dp) for dp in g["dp"]]


@solves("usp-bubble", by="(p - 1) / (v m)")
def bubbles(g: Given) -> Answer:
    return [playbook.bubble(g["p"], m, v) for m, v in g["mv"]]


def _data(g: Given, bandwidth: str) -> list[float]:
    return [
        playbook.data_parallel_overlap(g["tokens"], g["dp"], g["flops"], g[bandwidth], e)
        for e in g["bytes_per_elem"]
    ]


@solves("usp-overlap-dp", by="e / (2 tokens) (DP-1)/DP C/W")
def data_overlap(g: Given) -> Answer:
    return _data(g, "bw")


@solves("usp-overlap-zero3-tp", by="e / (2 tokens) (DP-1)/DP C/W; e (TP-1) / (2h) C/W")
def zero3_and_tensor_overlap(g: Given) -> Answer:
    tensor = [
        playbook.tensor_parallel_overlap(g["tp"], g["h"], g["flops"], g["bw_tp"], e)
        for e in g["bytes_per_elem"]
    ]
    return [_data(g, "bw_dp"), tensor]


@solves("usp-tp-drop", by="1 - measured / measured", library=False)
def tensor_drop(g: Given) -> Answer:
    pairs = (g["tp"], g["tpsp"])
    return [1 - now / before for before, now in pairs]


@solves("usp-dp-scaling", by="measured / measured on 8 GPUs", library=False)
def data_scaling(g: Given) -> Answer:
    return [now / g["tok"][0] for now in g["tok"]]


@solves("usp-collective-drop", by="measured / measured on one node", library=False)
def collective_drop(g: Given) -> Answer:
    return [now / g["gbs"][0] for now in g["gbs"][1:]]


def _layouts(g: Given) -> dict[tuple[str, int], Layout]:
    """(model, nodes) -> its best layout."""
    return {
        (model, int(nodes)): Layout(
            data=row[0], tensor=row[1], pipe=row[2], accumulation=row[3], microbatch=row[4],
            zero=row[5],
        )
        for model, rows in g["configs"].items()
        for nodes, row in rows.items()
    }  # fmt: skip


@solves("usp-best-configs", by="dp tp pp = GPUs; dp mbs acc = gbs")
def best_layouts(g: Given) -> Answer:
    found = _layouts(g)
    gpus = all(row.n_gpus == n * g["gpus_per_node"] for (_, n), row in found.items())
    return [gpus, all(row.samples == g["gbs"] for row in found.values())]


@solves("usp-trends", by="read from the measured layouts", library=False)
def trends(g: Given) -> Answer:
    found = _layouts(g)
    small = {n: [r.tensor for (m, k), r in found.items() if k == n and m != "80B"] for n in (1, 32)}
    deep = [found["80B", n].pipe for n in (4, 8, 16)]
    return [min(small[1]), min(small[32]), deep]


SITUATIONS = {
    "<10B on one node": playbook.first_step(7e9),
    "10B-100B": playbook.first_step(70e9),
    "512+ GPUs": playbook.first_step(n_gpus=512),
    "1024+ GPUs": playbook.first_step(n_gpus=1024),
    "very long sequences": playbook.first_step(long_sequences=True),
    "MoE": playbook.first_step(moe=True),
}


@solves("usp-cheatsheet", by="the cheat sheet's first step")
def cheat_sheet(g: Given) -> Answer:
    return [SITUATIONS[situation] for situation in g["cases"]]
