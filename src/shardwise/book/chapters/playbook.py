"""The Ultra-Scale Playbook."""

from __future__ import annotations

from shardwise.book.givens import column
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import playbook
from shardwise.formulas.playbook import Layout
from shardwise.units import GB, GiB


@solves("usp-param-count", formula="h v + L(12h^2 + 13h) + 2h")
def parameters(g: Given) -> Answer:
    return playbook.gpt_parameters(g["h"], g["v"], g["L"])


@solves("usp-state-memory", formula="16 N; 20 N with fp32 gradients")
def state(g: Given) -> Answer:
    params = column(g["params"])
    bf16_gradients = playbook.state_bytes(params)
    fp32_gradients = playbook.state_bytes(params, fp32_gradients=True)
    return [bf16_gradients / GB, fp32_gradients / GB]


@solves("usp-activations-none", formula="L s b h (34 + 5 n s / h)")
def activations(g: Given) -> Answer:
    n_layers, d_model, n_heads = column(g["models"])
    return playbook.activation_bytes(n_layers, g["s"], g["b"], d_model, n_heads) / GiB


@solves("usp-activations-selective", formula="34 L s b h")
def activations_selective(g: Given) -> Answer:
    L, h = column(g["models"])
    return playbook.activation_bytes(L, g["s"], g["b"], h, recompute="selective") / GiB


@solves("usp-selective-saving", formula="(5 n s / h) / (34 + 5 n s / h)")
def selective_saving(g: Given) -> Answer:
    return playbook.selective_saving(g["n"], g["s"], g["h"])


@solves("usp-activations-tp", formula="L s b h (10 + 24 / t)")
def activations_tensor(g: Given) -> Answer:
    L, h, t = column(g["cases"])
    return playbook.activation_bytes(L, g["s"], g["b"], h, recompute="selective", tensor=t) / GiB


@solves("usp-zero-shards", formula="4P + kP; 4P + kP/N; 2P + (2+k)P/N; (4+k)P/N")
def zero(g: Given) -> Answer:
    return [playbook.zero_bytes(g["params"], g["N"], stage, g["k"]) for stage in range(4)]


@solves("usp-zero-comm", formula="2P; 3P")
def zero_traffic(g: Given) -> Answer:
    return [playbook.zero_traffic(2), playbook.zero_traffic(3)]


@solves("usp-grad-accumulation", formula="gbs / (mbs dp)")
def accumulation(g: Given) -> Answer:
    return playbook.accumulation_steps(g["gbs"], g["mbs"], column(g["dp"]))


@solves("usp-bubble", formula="(p - 1) / (v m)")
def bubbles(g: Given) -> Answer:
    microbatches, interleaved = column(g["mv"])
    return playbook.bubble(g["p"], microbatches, interleaved)


def _data_parallel_overlap(g: Given, bytes_per_s: float) -> Answer:
    element_bytes = column(g["bytes_per_elem"])
    return playbook.data_parallel_overlap(
        g["tokens"], g["dp"], g["flops"], bytes_per_s, element_bytes
    )


@solves("usp-overlap-dp", formula="e / (2 tokens) (DP-1)/DP C/W")
def data_overlap(g: Given) -> Answer:
    return _data_parallel_overlap(g, g["bw"])


@solves("usp-overlap-zero3-tp", formula="e / (2 tokens) (DP-1)/DP C/W; e (TP-1) / (2h) C/W")
def zero3_and_tensor_overlap(g: Given) -> Answer:
    element_bytes = column(g["bytes_per_elem"])
    tensor = playbook.tensor_parallel_overlap(
        g["tp"], g["h"], g["flops"], g["bw_tp"], element_bytes
    )
    return [_data_parallel_overlap(g, g["bw_dp"]), tensor]


@solves(
    "usp-tp-drop", formula="1 - tokens/s with more GPUs / tokens/s with fewer", uses_library=False
)
def tensor_drop(g: Given) -> Answer:
    before, after = column([g["tp"], g["tpsp"]])
    return 1 - after / before


@solves("usp-dp-scaling", formula="tokens/s / tokens/s on 8 GPUs", uses_library=False)
def data_scaling(g: Given) -> Answer:
    return column(g["tok"]) / g["tok"][0]


@solves("usp-collective-drop", formula="bandwidth / bandwidth on one node", uses_library=False)
def collective_drop(g: Given) -> Answer:
    return column(g["gbs"][1:]) / g["gbs"][0]


def _layouts(g: Given) -> dict[tuple[str, int], Layout]:
    """The best layout of each model and number of nodes."""
    columns = ("data", "tensor", "pipe", "accumulation", "microbatch", "zero")
    layouts = {}
    for model, rows in g["configs"].items():
        for n_nodes, row in rows.items():
            layouts[model, int(n_nodes)] = Layout(**dict(zip(columns, row, strict=True)))
    return layouts


@solves("usp-best-configs", formula="dp tp pp = GPUs; dp mbs acc = gbs")
def best_layouts(g: Given) -> Answer:
    all_gpus = True
    all_samples = True
    for (_, n_nodes), layout in _layouts(g).items():
        all_gpus &= layout.n_gpus == n_nodes * g["gpus_per_node"]
        all_samples &= layout.samples == g["gbs"]
    return [all_gpus, all_samples]


@solves("usp-trends", formula="read from the measured layouts", uses_library=False)
def trends(g: Given) -> Answer:
    layouts = _layouts(g)
    tensor: dict[int, list[int]] = {}  # of the smaller models, by number of nodes
    for (model, n_nodes), layout in layouts.items():
        if model != "80B":
            tensor.setdefault(n_nodes, []).append(layout.tensor)
    pipe = [layouts["80B", n_nodes].pipe for n_nodes in (4, 8, 16)]
    return [min(tensor[1]), min(tensor[32]), pipe]


SITUATIONS = {
    "<10B on one node": playbook.recommended_technique(7e9),
    "10B-100B": playbook.recommended_technique(70e9),
    "512+ GPUs": playbook.recommended_technique(n_gpus=512),
    "1024+ GPUs": playbook.recommended_technique(n_gpus=1024),
    "very long sequences": playbook.recommended_technique(long_sequences=True),
    "MoE": playbook.recommended_technique(moe=True),
}


@solves("usp-cheatsheet", formula="the cheat sheet's first step")
def cheat_sheet(g: Given) -> Answer:
    return [SITUATIONS[situation] for situation in g["cases"]]
