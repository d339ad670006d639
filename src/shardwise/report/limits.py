"""The limits of a model on a chip as a table: value, formula, numbers, section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise.formulas.limits import TOKENS, Limit, Widths
from shardwise.report.style import Block, labelled, quiet, strong, table


def blocks(
    rows: Sequence[Limit], widths: Widths, chip: str, split: tuple[float, float] | None
) -> Iterator[Block]:
    """The tightest limits in words, then all of them."""
    tokens = [row for row in rows if row.unit == TOKENS and row.section == "5"]
    ways = [row for row in rows if row.unit != TOKENS]
    words = []
    if tokens:
        least = min(tokens, key=lambda row: row.value)
        words.append(f"compute-bound from {least.value:,.0f} tokens a chip ({least.name})")
    if ways:
        most = max(ways, key=lambda row: row.value if row.section != "7" else 0.0)
        words.append(f"up to {most.value:,.1f}-way tensor parallelism ({most.name})")
    sentence = "; ".join(words) or "no limit of a network: the chip has none with a figure"
    yield strong(sentence[0].upper() + sentence[1:] + ".")
    about = f"F {widths.d_ff:,}"
    if widths.n_experts > 1:
        about += f" of each of {widths.n_experts} experts, {widths.experts_per_token} a token"
    yield labelled([("on", f"{chip}, {about}")])
    if split:
        yield labelled([("best split", f"FSDP {split[0]:,.1f} x tensor {split[1]:,.1f} (§5)")])
    cells = [[row.name, _bound(row), row.formula, row.numbers, f"§{row.section}"] for row in rows]
    yield table(["compute-bound", ">!where", "!formula", "numbers", "!book"], cells)
    yield quiet(
        "tokens: of a chip; ways: chips that share a layer; α = C / W: FLOPs of a chip while a "
        "byte is sent; β = W_hbm / W; peak rates"
    )


def _bound(row: Limit) -> str:
    """`≥ 850`: the values at which compute is the bound."""
    sign = "≥" if row.above else "≤"
    value = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.3g}"
    return f"{sign} {value} {row.unit.partition('/')[0]}"
