"""The Ultra-Scale Playbook."""

from __future__ import annotations

from shardwise.book.givens import column
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import playbook
from shardwise.formulas.playbook import Layout
from shardwise.units import GB, GiB


@solves("usp-param-count", formula="h v + L(12h^2 + 13h) + 2h")
def parameters(given: Given) -> Answer:
    return playbook.gpt_parameters(given["h"], given["v"], given["L"])


@solves("usp-state-memory", formula="16 N; 20 N with fp32 gradients")
def state(given: Given) -> Answer:
    params = column(given["params"])
    bf16_gradients = playbook.state_bytes(params)
    fp32_gradients = playbook.state_bytes(params, fp32_gradients=True)
    return [bf16_gradients / GB, fp32_gradients / GB]


@solves("usp-activations-none", formula="L s b h (34 + 5 n s / h)")
def activations(given: Given) -> Answer:
    n_layers, d_model, n_heads = column(given["models"])
    return playbook.activation_bytes(n_layers, given["s"], given["b"], d_model, n_heads) / GiB


@solves("usp-activations-selective", formula="34 L s b h")
def activations_selective(given: Given) -> Answer:
    L, h = column(given["models"])
    return playbook.activation_bytes(L, given["s"], given["b"], h, recompute="selective") / GiB


@solves("usp-selective-saving", formula="(5 n s / h) / (34 + 5 n s / h)")
def selective_saving(given: Given) -> Answer:
    return playbook.selective_saving(given["n"], given["s"], given["h"])


@solves("usp-activations-tp", formula="L s b h (10 + 24 / t)")
def activations_tensor(given: Given) -> Answer:
    L, h, t = column(given["cases"])
    return (
        playbook.activation_bytes(L, given["s"], given["b"], h, recompute="selective", tensor=t)
        / GiB
    )


@solves("usp-zero-shards", formula="4P + kP; 4P + kP/N; 2P + (2+k)P/N; (4+k)P/N")
def zero(given: Given) -> Answer:
    return [
        playbook.zero_bytes(given["params"], given["N"], stage, given["k"]) for stage in range(4)
    ]


@solves("usp-zero-comm", formula="2P; 3P")
def zero_traffic(given: Given) -> Answer:
    return [playbook.zero_traffic(2), playbook.zero_traffic(3)]


@solves("usp-grad-accumulation", formula="gbs / (mbs dp)")
def accumulation(given: Given) -> Answer:
    return playbook.accumulation_steps(given["gbs"], given["mbs"], column(given["dp"]))


@solves("usp-bubble", formula="(p - 1) / (v m)")
def bubbles(given: Given) -> Answer:
    microbatches, interleaved = column(given["mv"])
    return playbook.bubble(given["p"], microbatches, interleaved)


def _data_parallel_overlap(given: Given, bytes_per_s: float) -> Answer:
    element_bytes = column(given["bytes_per_elem"])
    return playbook.data_parallel_overlap(
        given["tokens"], given["dp"], given["flops"], bytes_per_s, element_bytes
    )


@solves("usp-overlap-dp", formula="e / (2 tokens) (DP-1)/DP C/W")
def data_overlap(given: Given) -> Answer:
    return _data_parallel_overlap(given, given["bw"])


@solves("usp-overlap-zero3-tp", formula="e / (2 tokens) (DP-1)/DP C/W; e (TP-1) / (2h) C/W")
def zero3_and_tensor_overlap(given: Given) -> Answer:
    element_bytes = column(given["bytes_per_elem"])
    tensor = playbook.tensor_parallel_overlap(
        given["tp"], given["h"], given["flops"], given["bw_tp"], element_bytes
    )
    return [_data_parallel_overlap(given, given["bw_dp"]), tensor]


@solves(
    "usp-tp-drop", formula="1 - tokens/s with more GPUs / tokens/s with fewer", uses_library=False
)
def tensor_drop(given: Given) -> Answer:
    before, after = column([given["tp"], given["tpsp"]])
    return 1 - after / before


@solves("usp-dp-scaling", formula="tokens/s / tokens/s on 8 GPUs", uses_library=False)
def data_scaling(given: Given) -> Answer:
    return column(given["tok"]) / given["tok"][0]


@solves("usp-collective-drop", formula="bandwidth / bandwidth on one node", uses_library=False)
def collective_drop(given: Given) -> Answer:
    return column(given["gbs"][1:]) / given["gbs"][0]


def _layouts(given: Given) -> dict[tuple[str, int], Layout]:
    """The best layout that the playbook measured, by (model, number of nodes)."""
    columns = ("data", "tensor", "pipe", "accumulation", "microbatch", "zero")
    layouts = {}
    for model, rows in given["configs"].items():
        for n_nodes, row in rows.items():
            layouts[model, int(n_nodes)] = Layout(**dict(zip(columns, row, strict=True)))
    return layouts


@solves("usp-best-configs", formula="dp tp pp = GPUs; dp mbs acc = gbs")
def best_layouts(given: Given) -> Answer:
    all_gpus = True
    all_samples = True
    for (_, n_nodes), layout in _layouts(given).items():
        all_gpus &= layout.n_gpus == n_nodes * given["gpus_per_node"]
        all_samples &= layout.samples == given["gbs"]
    return [all_gpus, all_samples]


@solves("usp-trends", formula="read from the measured layouts", uses_library=False)
def trends(given: Given) -> Answer:
    layouts = _layouts(given)
    tensor: dict[int, list[int]] = {}  # number of nodes -> tensor degrees of the smaller models
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
def cheat_sheet(given: Given) -> Answer:
    return [SITUATIONS[situation] for situation in given["cases"]]
