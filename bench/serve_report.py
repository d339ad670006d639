"""Tables of what `bench/serve.py` has measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Found = dict[str, Any]


def tables(rows: Sequence[Found], ours: str) -> str:
    """Speeds, TTFT under load, and what was left out or failed.

    Args:
        ours: name of the side to which the others are compared.
    """
    good = [row for row in rows if row["verdict"] == "measured"]
    lines = speeds([row for row in good if "ttft_s" not in row], ours)
    lines += under_load([row for row in good if "ttft_s" in row], ours)
    missing = {name: why for row in rows for name, why in row["missing"].items()}
    failed = [row for row in rows if row["verdict"] != "measured"]
    lines += [f"- left out: {name}: {why}" for name, why in missing.items()]
    lines += [f"- {row['verdict']}: {row['name']}: {row['note']}" for row in failed]
    return "\n".join(lines)


def speeds(rows: Sequence[Found], ours: str) -> list[str]:
    """Tokens a second, ours over the other's with its spread, and shares of the bandwidth."""
    if not rows:
        return []
    lines = ["| row | shardwise | of memory | other side | tokens/s | of memory | ratio | spread |"]
    lines += ["|---|--:|--:|---|--:|--:|--:|--:|"]
    for row in rows:
        for name, (middle, least, most) in row["ratio"].items():
            here = f"{row['tokens_per_s'][ours][0]:,.1f} | {share(row, ours)}"
            there = f"{row['tokens_per_s'][name][0]:,.1f} | {share(row, name)}"
            ratio = f"{middle:.2f} | {least:.2f} to {most:.2f}"
            lines.append(f"| {row['name']} | {here} | {name} | {there} | {ratio} |")
    limits = [row["bytes_per_s"][0] / 1e9 for row in rows if "bytes_per_s" in row]
    if limits:
        lines += ["", f"Memory: {min(limits):.1f} to {max(limits):.1f} GB/s."]
    return [*lines, ""]


def share(row: Found, side: str) -> str:
    """The share of the memory's bandwidth that a side uses in a decode row."""
    if "bandwidth_share" not in row:
        return "-"
    return f"{row['bandwidth_share'][side][0]:.0%}"


def under_load(rows: Sequence[Found], ours: str) -> list[str]:
    """TTFT and tokens a second of each side."""
    if not rows:
        return []
    lines = ["| row | side | TTFT p50, ms | tokens/s | TTFT, ours over theirs | spread |"]
    lines += ["|---|---|--:|--:|--:|--:|"]
    for row in rows:
        for name, ttft in row["ttft_s"].items():
            ratio = "| |"
            if name != ours:
                middle, least, most = row["ttft_ratio"][name]
                ratio = f"{middle:.2f} | {least:.2f} to {most:.2f} |"
            speed = row["tokens_per_s"][name][0]
            lines.append(
                f"| {row['name']} | {name} | {ttft[0] * 1e3:,.0f} | {speed:,.1f} | {ratio}"
            )
    return [*lines, ""]
