"""Shares of a chip's peak rates that serving achieves: `[serving]` in the calibration files.

The values were fitted to one half of the published measurements and tested on the other; no value
is specific to a single model or measurement. They are those of an engine that is not named:
`overhead` has the factors of the others.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from shardwise.estimate.calibration import AchievedShares, read_file

# Kind of chip -> the chip whose values are used for chips of this kind without a `[serving]` table.
REFERENCE_CHIPS = {"tpu": "v5p", "gpu": "h100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEfficiency(AchievedShares):
    """Shares of one chip's peak rates that serving achieves, and its overheads.

    Args:
        stream: share of the HBM bandwidth that reading weights and KV cache achieves.
        network: share of the link bandwidth that collectives achieve.
        kernel_s: idle seconds between one kernel and the next.
        routed_s: seconds per routed layer for top-k, sorting and gathering of tokens on hardware
            that is slow at them; they come on top of matmuls and `kernel_s`.
        message_s: seconds of a collective that do not depend on its bytes.
    """

    stream: float = 1.0
    network: float = 1.0
    kernel_s: float = 0.0
    routed_s: float = 0.0
    message_s: float = 0.0


AT_PEAK = ServingEfficiency()
MEASURED = "hw measure"  # name of the rates of a machine that it has measured


@functools.cache
def serving_efficiency(chip: str, kind: str) -> ServingEfficiency:
    """Efficiency of a chip, or of the reference chip of its kind; `AT_PEAK` if neither has values.

    Args:
        chip: name of the chip.
        kind: "tpu", "gpu" or another kind of chip.
    """
    for name in (chip, REFERENCE_CHIPS.get(kind, "")):
        data = read_file(name)
        if "serving" in data:
            return ServingEfficiency(name=name, **data["serving"])
        if "like" in data:
            return serving_efficiency(data["like"], kind)
    return AT_PEAK
