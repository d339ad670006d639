"""What chips reach while they serve: the `[serving]` table of a chip's calibration file.

`bench/calibrate_serving.py` makes the values from one half of the published measurements and tests
them on the other: none belongs to a model or to a row.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from shardwise.estimate import calibration
from shardwise.estimate.calibration import WIDER

USUAL = {"tpu": "v5p", "gpu": "h100"}  # whose shares stand in for a chip without a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Corrections of one chip in serving.

    Args:
        name: the chip whose table it is, or "peak".
        as_of, source: when and from what the values were made.
        matmuls: dtype -> share of the dense peak that large products reach.
        attention: share of the 16-bit peak that attention over prompts reaches.
        grouped: share of a plain product's rate that those of routed experts reach.
        stream: share of the HBM bandwidth that reading weights and caches reaches.
        network: share of the link rates that collectives reach.
        kernel_s: seconds between the end of one kernel's work and the start of the next one's.
        routed_s: seconds of a routed layer beside its products and kernels: choosing, sorting and
            gathering tokens where hardware has no fast way to.
        message_s: seconds that a collective takes beside what its bytes need.
        spread: predictions of measurements that had no part in the values were within a factor
            1 + spread in four cases of five; 1 where nothing was compared.
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
        at: str | None = dtype
        while at is not None and at not in self.matmuls:
            at = WIDER.get(at)
        return 1.0 if at is None else self.matmuls[at]


AT_PEAK = Shares()


@functools.cache
def shares(chip: str, kind: str) -> Shares:
    """The corrections of a chip, or of the usual chip of its kind; at peak where there is none.

    What its products, attention over prompts and links reach is taken from its training runs, where
    the `[serving]` table does not say otherwise.
    """
    for name in (chip, USUAL.get(kind, "")):
        file = files(calibration) / f"{name}.toml"
        if not file.is_file():
            continue
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        if "serving" in data:
            return Shares(name=name, **(_trained(data) | data["serving"]))
        if "like" in data:
            return shares(data["like"], kind)
    return AT_PEAK


def _trained(data: Mapping[str, Any]) -> dict[str, Any]:
    like = data.get("like")
    if like:
        file = files(calibration) / f"{like}.toml"
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    found = {name: data[name] for name in ("matmuls", "attention") if name in data}
    return found | ({"network": data["links"]} if "links" in data else {})
