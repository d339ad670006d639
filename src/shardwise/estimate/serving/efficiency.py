"""Shares of their peaks that chips achieve in serving: `[serving]` in the calibration files.

`bench/calibrate_serving.py` fits the values on one half of the published measurements and tests
them on the other; no value belongs to a single model or measurement.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from shardwise.estimate import calibration
from shardwise.estimate.calibration import matmul_efficiency

# Chips whose values are used for other chips of their kind, which have no table.
REFERENCE_CHIPS = {"tpu": "v5p", "gpu": "h100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEfficiency:
    """Achieved shares of one chip's peaks in serving, and its overheads.

    Args:
        name: the chip whose table it is, or "peak".
        as_of: date of the values.
        source: data that they were fitted to.
        matmuls: dtype -> share of the dense peak that large matmuls achieve.
        attention: share of the 16-bit peak that attention over prompts achieves.
        grouped: rate of the routed experts' matmuls relative to a plain matmul.
        stream: share of the HBM bandwidth that reading weights and KV cache achieves.
        network: share of the link rates that collectives achieve.
        kernel_s: seconds between the end of one kernel's work and the start of the next one's.
        routed_s: seconds of a routed layer outside its matmuls and kernels: top-k, sorting and
            gathering tokens where the hardware has no fast way to.
        message_s: seconds of a collective that do not depend on its bytes.
        spread: four of five predictions of held-out measurements were within a factor 1 + spread;
            1 where nothing was compared.
    """

    name: str = "peak"
    as_of: str = ""
    source: str = ""
    matmuls: Mapping[str, float] = field(default_factory=dict)
    attention: float = 1.0
    grouped: float = 1.0
    stream: float = 1.0
    network: float = 1.0
    kernel_s: float = 0.0
    routed_s: float = 0.0
    message_s: float = 0.0
    spread: float = 1.0

    def matmul(self, dtype: str) -> float:
        """Share of the peak at a dtype, or at the next wider one that is known."""
        return matmul_efficiency(self.matmuls, dtype)


AT_PEAK = ServingEfficiency()


@functools.cache
def serving_efficiency(chip: str, kind: str) -> ServingEfficiency:
    """Efficiency of a chip, or of the reference chip of its kind; `AT_PEAK` if there is neither.

    Matmuls, attention and links have the values of training unless `[serving]` overrides them.
    """
    for name in (chip, REFERENCE_CHIPS.get(kind, "")):
        data = _calibration_file(name)
        if "serving" in data:
            return ServingEfficiency(name=name, **(_training_values(data) | data["serving"]))
        if "like" in data:
            return serving_efficiency(data["like"], kind)
    return AT_PEAK


def _calibration_file(chip: str) -> dict[str, Any]:
    """Content of a chip's calibration file; empty if it has none."""
    file = files(calibration) / f"{chip}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _training_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of training that apply to serving too."""
    if "like" in data:
        data = _calibration_file(data["like"])
    renamed = {"matmuls": "matmuls", "attention": "attention", "links": "network"}
    return {field: data[key] for key, field in renamed.items() if key in data}
