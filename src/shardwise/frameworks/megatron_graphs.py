"""Settings of kernels (`Train.kernels`) as fields of Megatron Core: CUDA graphs, 8-bit attention.

https://github.com/NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shardwise.frameworks.exported import Settings

FIELDS = (
    "cuda_graph_impl", "cuda_graph_modules", "cuda_graph_scope", "enable_cuda_graph",
    "fp8_dot_product_attention",
)  # fmt: skip
_WHOLE = "full_iteration"
# Modules of a layer that graphs hold -> the word of a plan. A router has few kernels.
_MODULES = {"attn": "attn_graphs", "mamba": "attn_graphs", "mlp": "mlp_graphs", "moe": "mlp_graphs"}


def read(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings of kernels in a file; none where graphs hold the router of experts alone."""
    words: tuple[str, ...] = ()
    implementation = str(values.get("cuda_graph_impl") or "none")
    if implementation != "none" or values.get("enable_cuda_graph") is True:
        scope = values.get("cuda_graph_modules") or values.get("cuda_graph_scope") or _WHOLE
        modules = scope.replace(",", " ").split() if isinstance(scope, str) else list(scope)
        words = ("cuda_graphs",)
        if not {_WHOLE, "full"} & {implementation, *modules}:
            words = tuple(dict.fromkeys(_MODULES[name] for name in modules if name in _MODULES))
    if values.get("fp8_dot_product_attention") is True:
        words = (*words, "fp8_attention")
    return words


def write(kernels: Collection[str]) -> Settings:
    """The fields of settings of kernels."""
    fields: Settings = {}
    modules = [name for name, word in _MODULES.items() if word in kernels and name != "mamba"]
    if "cuda_graphs" in kernels:
        fields = {"cuda_graph_impl": "local", "cuda_graph_scope": _WHOLE}
    elif modules:
        fields = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": modules}
    if "fp8_attention" in kernels:
        fields["fp8_dot_product_attention"] = True
    return fields
