"""Descriptions of GPUs for XLA's compiler, as protobuf text.

`gpus.toml` contains the values that a compute capability determines. All others are specifications
of the chip, from the catalog.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

from shardwise.hardware import Chip, catalog_chip

_DATA = Path(__file__).with_name("gpus.toml")

# Fields with the same value on every NVIDIA GPU since Volta, from the CUDA programming guide.
_COMMON_FIELDS = {
    "threads_per_warp": 32,
    "threads_per_block_limit": 1024,
    "shared_memory_per_block": 48 * 2**10,
    "registers_per_core_limit": 2**16,
    "registers_per_block_limit": 2**16,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 2**16 - 1,
    "block_dim_limit_z": 2**16 - 1,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
}

# Specifications of a chip: the compiler's name -> the catalog's name.
_SPECIFICATIONS = {
    "core_count": "n_sms",
    "memory_bandwidth": "hbm_bytes_per_s",
    "device_memory_size": "hbm_bytes",
    "l2_cache_size": "l2_bytes",
    "clock_rate_ghz": "clock_hz",
}


@functools.cache
def _gpu_table() -> dict[str, Any]:
    return tomllib.loads(_DATA.read_text())


def capability_of(name: str) -> str | None:
    """The compute capability of a GPU in the catalog, such as `9.0`; None if `gpus.toml` lacks it.

    >>> capability_of("h100")
    '9.0'
    """
    for capability, entry in _gpu_table()["capability"].items():
        if name in entry["chips"]:
            return str(capability)
    return None


def gpu_config(chip: Chip) -> str | list[str]:
    """The text of a `GpuTargetConfigProto`, or the list of specifications that are missing.

    A specification that the catalog lacks is taken from a chip with the same die, as listed in
    `gpus.toml`. It affects the compiler's cost model, not whether a program fits.
    """
    capability = capability_of(chip.name)
    if capability is None:
        return ["the compute capability"]
    specifications, missing = _specifications(chip)
    if missing:
        return missing
    entry = _gpu_table()["capability"][capability]
    major, minor = capability.split(".")
    fields = {
        **_COMMON_FIELDS,
        **specifications,
        "fpus_per_core": entry["fp32_lanes_per_sm"],
        "threads_per_core_limit": entry["threads_per_sm"],
        "shared_memory_per_core": entry["shared_kib_per_sm"] * 2**10,
        "shared_memory_per_block_optin": entry["shared_kib_per_block"] * 2**10,
    }
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    extension = "ACCELERATED_FEATURES" if entry["accelerated"] else "NONE"
    lines.append(
        f"  cuda_compute_capability {{ major: {major} minor: {minor} "
        f"feature_extension: {extension} }}"
    )
    dnn = " ".join(f"{key}: {n}" for key, n in _gpu_table()["cudnn"]["version"].items())
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            f'  name: "{chip.title}"',
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ {dnn} }}",
            f'device_description_str: "{chip.title}"',
        ]
    )


def _specifications(chip: Chip) -> tuple[dict[str, float], list[str]]:
    """Specifications by the compiler's names, and the catalog's names of missing ones."""
    specifications: dict[str, float] = {}
    missing = []
    same_die_chip = _gpu_table()["same_die"].get(chip.name)
    for name, attribute in _SPECIFICATIONS.items():
        value = getattr(chip, attribute)
        if value is None and same_die_chip:
            value = getattr(catalog_chip(same_die_chip), attribute)
        if value is None:
            value = _gpu_table()["figures"].get(chip.name, {}).get(attribute)
        if value is None:
            missing.append(attribute)
        elif name == "clock_rate_ghz":
            specifications[name] = value / 1e9
        else:
            specifications[name] = int(value)
    return specifications, missing
