"""Names of machines as people write them: `h100:64`, `8xH100`, `v5litepod-16`, `v4-256`."""

from __future__ import annotations

import re

from shardwise.errors import BadShape
from shardwise.hardware.catalog import find_chip, has_nearest, is_chip
from shardwise.hardware.chip import Chip
from shardwise.hardware.torus import legal_slices, nearest_slices

_COUNT_FIRST = re.compile(r"(?P<count>[1-9][0-9]{0,8})(?:\s*[x×*]\s*|\s+)(?P<chip>.+)", re.I)
_COUNT_LAST = re.compile(r"(?P<chip>.+?)(?:\s*[x×*]\s*|\s+)(?P<count>[1-9][0-9]{0,8})", re.I)
_ACCELERATOR_TYPE = re.compile(r"(?P<chip>.+)-(?P<count>[1-9][0-9]{0,8})")


def split_name(text: str) -> tuple[str, str]:
    """Split the name of a machine into its chip and its size, which is empty for a chip alone.

    In Google Cloud's names, as `v4-256`, the number counts TensorCores; the slice is the most
    compact one of that many. A name that is unknown is returned as a chip.

    >>> split_name("h100:64"), split_name("8xH100"), split_name("NVIDIA H100 80GB HBM3")
    (('h100', '64'), ('H100', '8'), ('NVIDIA H100 80GB HBM3', ''))
    >>> split_name("v5litepod-16"), split_name("v4-256")
    (('v5litepod', '4x4'), ('v4', '4x4x8'))

    Raises:
        BadShape: no slice has this number of TensorCores, or the number may mean gigabytes.
    """
    name = text.strip()
    if ":" in name:
        chip, _, size = name.rpartition(":")
        return (chip, size) if chip.strip(":") else (name, "")
    if name.endswith(".toml") or is_chip(name):
        return name, ""
    for pattern in (_COUNT_FIRST, _COUNT_LAST, _ACCELERATOR_TYPE):
        match = pattern.fullmatch(name)
        if not match or not (is_chip(match["chip"]) or has_nearest(match["chip"])):
            continue
        if pattern is _ACCELERATOR_TYPE and (tpu := _tpu(match["chip"])):
            return match["chip"], _slice(tpu, int(match["count"]), name)
        if pattern is not _COUNT_FIRST and is_chip(f"{match['chip']}-{match['count']}g"):
            raise BadShape(
                f'"{name}" may be a number of chips or of gigabytes. Write '
                f"{match['chip']}:{match['count']}, or {match['chip']}-{match['count']}gb:8."
            )
        return match["chip"], match["count"]
    return name, ""


def _tpu(chip: str) -> Chip | None:
    """The chip, if it is one that is joined in a torus."""
    if not is_chip(chip):
        return None
    found = find_chip(chip)
    return found if found.ici else None


def _slice(chip: Chip, n_cores: int, name: str) -> str:
    """The most compact slice with this number of TensorCores."""
    cores_per_chip = chip.n_cores or 1
    n_chips = n_cores / cores_per_chip
    for torus in legal_slices(chip):
        if torus.n_chips == n_chips:
            return str(torus)
    counted = f"{n_chips:,g} chips"
    if cores_per_chip > 1:
        counted += f" ({n_cores:,} TensorCores, {cores_per_chip} a chip)"
    nearest = nearest_slices(chip, max(1, round(n_chips)))
    raise BadShape(f'"{name}" is {counted}, and no slice of {chip.name} has as many. {nearest}')
