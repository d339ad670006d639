"""Time of a collective of GPUs as NCCL runs it: what it takes to start, whatever its bytes.

NCCL sends around one ring through all GPUs. Each of its steps adds a latency, which depends on the
protocol: the one with the full bandwidth synchronizes slowly, the other one quickly, at a quarter
of the bandwidth. An AllReduce may use a tree instead. NCCL chooses what its own model says is
fastest; the latencies are those of that model (NVIDIA/nccl, src/graph/tuning.cc, `baseLat` and
`hwLat`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, log2, minimum, where
from shardwise.ops.collective import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One algorithm of NCCL with one of its protocols.

    Args:
        base_s: seconds to start.
        inside_s: seconds of a step over NVLink.
        outside_s: seconds of a step between nodes.
        share: share of the bandwidth.
    """

    base_s: float
    inside_s: float
    outside_s: float
    share: float = 1.0

    def time_s(self, transfer_s: Num, inside_steps: Num, outside_steps: Num) -> Num:
        """Seconds of a collective whose bytes take `transfer_s` at the full bandwidth."""
        steps_s = inside_steps * self.inside_s + outside_steps * self.outside_s
        return transfer_s / self.share + self.base_s + steps_s


RING = Protocol(base_s=8.4e-6, inside_s=3.4e-6, outside_s=9.6e-6)
LOW_LATENCY_RING = Protocol(base_s=3.6e-6, inside_s=0.85e-6, outside_s=2.7e-6, share=0.25)
# Its chunks of 256 kB take 28 us over NVLink and 50 us between nodes.
TREE = Protocol(base_s=0.0, inside_s=28e-6, outside_s=50e-6, share=0.9)

# What a step of the protocol with flags of 128 bytes takes longer than one with flags of 8 bytes:
# 1.9 and 0.6 us over NVLink, 4.0 and 2.7 us between nodes (`hwLat`, rings).
WIDE_FLAGS_STEP_S = 1.3e-6


def protocol_s(price: Price, transfer_s: Num) -> Num:
    """Seconds beyond those of its bytes that a collective's protocol takes, but for its start.

    Of few bytes, the protocol of low latency sends a flag with each word: a quarter of the
    bandwidth. Of more, that of wide flags synchronizes slower in each step. Kernels of engines that
    read all peers at once choose alike, between one shot and two.

    Args:
        price: the price of the collective, which has its steps; 0 of them on a torus.
        transfer_s: seconds of its bytes at the bandwidth that is reached.
    """
    narrow_s = transfer_s * (1 / LOW_LATENCY_RING.share - 1)
    wide_s = (price.inside_steps + price.outside_steps) * WIDE_FLAGS_STEP_S
    return minimum(narrow_s, wide_s)


def time_s(kind: object, price: Price, transfer_s: Num) -> Num:
    """Seconds of a collective whose bytes take `transfer_s`; 0 if it joins only one GPU.

    Args:
        kind: one of `ops.collective.KINDS`, or a `SendOnce`.
        price: the price of the collective, which has its steps.
        transfer_s: seconds of its bytes at the bandwidth that is reached.
    """
    inside = price.inside_steps
    outside = price.outside_steps
    seconds = minimum(
        RING.time_s(transfer_s, inside, outside),
        LOW_LATENCY_RING.time_s(transfer_s, inside, outside),
    )
    if kind == "all_reduce":
        # 2 (n - k) steps inside the k nodes of a ring, 2 (k - 1) between them: up and down a tree
        # there are 2 (n / k - 1) inside a node and 2 log2 k between nodes.
        n_nodes = outside / 2 + 1
        tree_s = TREE.time_s(transfer_s, inside / n_nodes, 2 * log2(n_nodes))
        seconds = minimum(seconds, tree_s)
    return where(inside + outside > 0, seconds, transfer_s)
