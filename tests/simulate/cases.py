"""Traffic, limits and pass times that are drawn; all times are exact."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardwise.simulate import Limits, Pool, SimulationResult, Traffic
from shardwise.simulate.times import PassTimes


class Exact(PassTimes):
    """Affine times without rounding, so that equal results are equal numbers.

    All factors are powers of 2. The mean context of a stretch has the number of its passes as its
    denominator, so it is found again behind the rounded number, and drops out of the stretch.
    """

    def pass_s(
        self, decode: int, kv_tokens: float, prefill: int, pairs: float, chunks: Any = ()
    ) -> float:
        kv = Fraction(kv_tokens).limit_denominator(10_000)
        exact = Fraction(1, 2**6) + Fraction(decode, 2**12) + kv / 2**18
        return exact + Fraction(prefill, 2**11) + Fraction(pairs) / 2**20  # type: ignore[return-value]


TIMES = Exact()


@st.composite
def limits(draw: st.DrawFn, whole_gain: bool = False) -> Limits:
    """Engines so small that queues form and blocks run out."""
    block = draw(st.sampled_from([1, 4, 5]))
    sequences = draw(st.integers(1, 6))
    return Limits(
        # The longest request of `traffics` fits, and not much more.
        n_blocks=-(-55 // block) + draw(st.integers(0, 60 // block)),
        block_tokens=block,
        max_sequences=sequences,
        max_tokens=sequences + draw(st.integers(0, 30)),
        chunked=draw(st.booleans()),
        paged=draw(st.sampled_from([True, True, False])),
        prefix_cache=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        tokens_per_pass=draw(st.sampled_from([1.0, 1.0, 2.0] if whole_gain else [1.0, 2.3, 1.5])),
    )


@st.composite
def traffics(draw: st.DrawFn, closed: bool | None = None, at_once: bool = False) -> Traffic:
    """Up to 14 requests, in bursts or apart, some with a text in common."""
    n = draw(st.integers(1, 14))
    whole = lambda low, high: np.array(
        draw(st.lists(st.integers(low, high), min_size=n, max_size=n))
    )
    prompt, output = whole(1, 25), whole(1, 25)
    prefix = draw(st.lists(st.sampled_from(["a", "b", None]), min_size=n, max_size=n))
    shared = np.minimum(whole(0, 25), prompt)
    columns = {"prompt": prompt, "output": output, "prefix": prefix, "shared": shared}
    if draw(st.booleans()) if closed is None else closed:
        return Traffic(
            users=draw(st.integers(1, 5)), think_s=draw(st.integers(0, 9)) / 64, **columns
        )
    gaps = whole(0, 0 if at_once else 40)
    return Traffic(arrival_s=gaps.cumsum() / 64, **columns)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """One to three engines."""
    router = draw(st.sampled_from(["least_outstanding", "round_robin"]))
    return Pool(times=TIMES, limits=draw(limits()), replicas=draw(st.integers(1, 3)), router=router)


def columns(result: SimulationResult) -> dict[str, list[float]]:
    """Rows as plain lists, to compare."""
    return {name: column.tolist() for name, column in result.columns.items()}
