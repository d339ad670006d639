"""The limits of a model on a chip as a table: value, formula, numbers, section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise.formulas.limits import TOKENS, WAYS, Limit, Widths
from shardwise.report.style import Block, labelled, quiet, strong, table


def blocks(
    rows: Sequence[Limit],
    widths: Widths,
    chip: str,
    split: tuple[float, float] | None,
    tokens_per_chip: float | None,
) -> Iterator[Block]:
    """The tightest limits in words, then all of them.

    Args:
        split: the best degrees of FSDP and tensor parallelism of a batch on a torus, if given.
        tokens_per_chip: of a batch on a machine, if given.
    """
    tokens = [row for row in rows if row.unit == TOKENS and row.section == "5"]
    ways = [row for row in rows if row.unit == WAYS and row.section != "7"]
    words = []
    if tokens:
        least = min(tokens, key=lambda row: row.value)
        words.append(f"compute-bound from {least.value:,.0f} tokens a chip ({least.name})")
    if ways:
        words.append(_most_ways(ways))
    sentence = "; ".join(words) or "no limit of a network: the chip has none with a figure"
    yield strong(sentence[0].upper() + sentence[1:] + ".")
    about = f"F {widths.d_ff:,}"
    if widths.n_experts > 1:
        about += f" of each of {widths.n_experts} experts, {widths.experts_per_token} a token"
    yield labelled([("on", f"{chip}, {about}")])
    if tokens_per_chip is not None:
        verdict = _enough(tokens, tokens_per_chip)
        if split:
            verdict = f"best split FSDP {split[0]:,.1f} x tensor {split[1]:,.1f} (§5)"
        yield labelled([("batch", f"{tokens_per_chip:,.0f} tokens a chip; {verdict}")])
    cells = [[row.name, _bound(row), row.formula, row.numbers, f"§{row.section}"] for row in rows]
    yield table(["compute-bound", ">!where", "!formula", "numbers", "!book"], cells)
    yield quiet(
        "tokens: of a chip; ways: chips that share a layer; α = C / W: FLOPs of a chip while a "
        "byte is sent; β = W_hbm / W; peak rates"
    )


def _most_ways(ways: Sequence[Limit]) -> str:
    """The most tensor parallelism that is compute-bound, on a network that has so many chips."""
    reached = {row.name: min(row.value, row.largest or row.value) for row in ways}
    name = max(reached, key=lambda name: reached[name])
    if reached[name] < 2:
        return f"no tensor parallelism ({reached[name]:.2g} ways: {name})"
    most = f"{reached[name]:,.1f}".removesuffix(".0")
    return f"up to {most}-way tensor parallelism ({name})"


def _enough(limits: Sequence[Limit], tokens: float) -> str:
    """The largest limit that a batch is beyond, and the smallest that it is not."""
    rising = sorted(limits, key=lambda row: row.value)
    words = [f"enough for {row.name}" for row in rising if row.value <= tokens][-1:]
    words += [f"too few for {row.name}" for row in rising if row.value > tokens][:1]
    return "; ".join(words)


def _bound(row: Limit) -> str:
    """`≥ 850`: the values at which compute is the bound."""
    sign = "≥" if row.above else "≤"
    value = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.3g}"
    return f"{sign} {value} {row.unit.partition('/')[0]}"
