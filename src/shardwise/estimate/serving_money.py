"""From a step time to a service: queries, evictions, disaggregation, money. Book §8.

P prompt tokens, G generated tokens, B sequences that decode at once, t the seconds of one step.
"""

from __future__ import annotations

from shardwise.arrays import Num
from shardwise.units import HOUR


def decode_s(step_s: Num, generated: Num) -> Num:
    """t G: seconds of an answer."""
    return step_s * generated


def query_rate(batch: Num, step_s: Num, generated: Num) -> Num:
    """B / (t G): queries per second of one server; over its chips, per chip.

    >>> round(query_rate(43, 0.019, 512), 2)
    4.42
    """
    return batch / (step_s * generated)


def finished_per_step(batch: Num, generated: Num) -> Num:
    """B / G: sequences that end in a step of a steady server."""
    return batch / generated


def evicted_per_step(batch: Num, prompt: Num, generated: Num) -> Num:
    """B (P + G) / G: cached tokens that a steady server throws away a step.

    >>> evicted_per_step(32, 8192, 4096)
    96.0
    """
    return batch * (prompt + generated) / generated


def prefill_servers(prefill_s: Num, step_s: Num, batch: Num, generated: Num) -> Num:
    """Prefill servers that keep one decode server of the same size busy: t_prefill B / (t G).

    Args:
        prefill_s: Seconds of one prompt on a prefill server.
        step_s: Seconds of a step on a decode server.
        batch: Sequences that it decodes at once.
        generated: Tokens of an answer.
    """
    return prefill_s * query_rate(batch, step_s, generated)


def rate_per_price(flops_per_s: Num, usd_per_hour: Num) -> Num:
    """FLOP/s for each dollar an hour: the column of the book's table of prices."""
    return flops_per_s / usd_per_hour


def flops_per_usd(flops_per_s: Num, usd_per_hour: Num) -> Num:
    """FLOPs that a dollar buys at peak: 3600 times the rate per price."""
    return HOUR * flops_per_s / usd_per_hour


def usd_per_million_tokens(tokens_per_s_per_chip: Num, usd_per_chip_hour: Num) -> Num:
    """Dollars for a million tokens of a server that is always busy."""
    return usd_per_chip_hour / HOUR / tokens_per_s_per_chip * 1e6
