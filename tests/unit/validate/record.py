"""A complete record of the published schema, for tests to change."""

from __future__ import annotations

from typing import Any


def record(**changes: Any) -> dict[str, Any]:
    """A small dense run on 16 H100; keys `part__key` change one entry of an object."""
    made: dict[str, Any] = {
        "id": "test-row",
        "source": {"repo": "NVIDIA-NeMo/Megatron-Bridge"},
        "date": "2026-01-01",
        "task": "pretrain",
        "group": "test|tiny|H100",
        "quality": "A",
        "tier": "core",
        "model": {
            "name": "Tiny", "layers": 8, "d_model": 1024, "n_heads": 8, "n_kv_heads": 4,
            "head_dim": 128, "d_ff": 4096, "mlp_matrices": 3, "vocab": 32000,
            "attention": "gqa",
        },
        "hardware": {"family": "H100", "count": 16, "chips_per_node": 8},
        "precision": "bf16",
        "seq_len": 4096,
        "global_batch_seqs": 64,
        "micro_batch": 2,
        "parallelism": {
            "dp": 4, "zero_stage": 1, "tp": 2, "sp": True, "cp": 1, "pp": 2, "vpp": 2,
        },
        "recompute": {"policy": "none"},
        "overlap": {"overlap_grad_reduce": True},
        "measured": {"step_time_s": 1.5},
        "flops_convention": "full",
    }  # fmt: skip
    for name, value in changes.items():
        part, inside, key = name.partition("__")
        if inside:
            made[part] = {**made[part], key: value}
        else:
            made[part] = value
    return made


def moe(**changes: Any) -> dict[str, Any]:
    """The same with 16 experts."""
    model = {**record()["model"], "experts": 16, "top_k": 2, "moe_d_ff": 512}
    return record(**{"model": model, **changes})
