"""Point to point, trees, overlapped matmuls, experts and pipelines."""

from __future__ import annotations

import pytest

from shardwise.errors import BadShape
from shardwise.formulas import links
from shardwise.hardware import Torus
from shardwise.strategy.span import Tier

NODE, RAIL = Tier("node", 8, 450e9), Tier("scale-out", 16, 50e9)


def test_hops_go_the_short_way_round() -> None:
    ring = Torus(shape=(16, 4), wrapped=(True, False))
    assert links.torus_hops(ring, (0, 0), (15, 3)) == 4
    assert links.torus_hops(ring, (0, 0), (8, 0)) == 8
    assert links.torus_hops(ring, (3, 2), (3, 2)) == 0


@pytest.mark.parametrize("end", [(4, 0), (0, -1), (0,), (0, 0, 0)])
def test_a_chip_outside_is_refused(end: tuple[int, ...]) -> None:
    with pytest.raises(BadShape, match="is not a chip of a torus of 4x4"):
        links.torus_hops(Torus(shape=(4, 4), wrapped=(False, False)), (0, 0), end)


def test_ports_share_the_bytes_and_not_the_hops() -> None:
    one, two = (
        links.point_to_point_s(9e10, 6, link_bytes_per_s_one_way=4.5e10, hop_s=1e-6, ports=p)
        for p in (1, 2)
    )
    assert (one, two) == (pytest.approx(2 + 6e-6), pytest.approx(1 + 6e-6))


def test_a_collective_matmul_hides_what_it_can() -> None:
    steps = links.collective_matmul(4, 2048, math_s=4e-3, n_bytes=4e9, bytes_per_s=1e12)
    assert (steps.n_permutes, steps.n_matmuls, steps.chunk) == (3, 4, 512)
    assert steps.matmul_s == pytest.approx(1e-3)
    assert steps.permute_s == pytest.approx(1e-3)
    sequential_s = steps.n_matmuls * steps.matmul_s + steps.n_permutes * steps.permute_s
    assert sequential_s == pytest.approx(7e-3)
    assert steps.overlapped_s == pytest.approx(4e-3)
    slow = links.collective_matmul(4, 2048, math_s=4e-3, n_bytes=8e9, bytes_per_s=1e12)
    assert slow.overlapped_s == pytest.approx(1e-3 + 3 * 2e-3)
