"""Optimizers: kinds of parameters, Muon's arithmetic counted as it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.estimate.training.optimizer import NEWTON_SCHULZ_STEPS, muon_flops, parameter_kind
from shardwise.models.weights import Weight, layer_weights, outer_weights
from shardwise.workload import PARAMETER_KINDS

NAMES = ["llama3-8b", "llama3-70b", "deepseek-v3", "gpt2", "gpt-oss-20b", "qwen2-0.5b"]


def weights(name: str) -> Iterator[tuple[Weight, int]]:
    """Every weight of a model and how often it is there."""
    model = sw.model(name)
    for group in model.groups:
        yield from ((w, group.count) for w in layer_weights(model, group.layer))
    yield from ((w, 1) for w in outer_weights(model))


def by_kind(name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for weight, count in weights(name):
        found[parameter_kind(weight)] += weight.size * count
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_kind(name: str) -> None:
    found = by_kind(name)
    assert set(found) == set(PARAMETER_KINDS)
    assert found.total() == sw.parameters(sw.model(name)).total
    assert found["vector"] < 0.01 * found.total()


def test_kinds_of_one_model() -> None:
    """LLaMA-3-8B: two tables of 128,256 x 4,096, and two norms in 32 layers and one after them."""
    found = by_kind("llama3-8b")
    assert found["embedding"] == 2 * 128_256 * 4096
    assert found["vector"] == 65 * 4096


def test_kinds_of_weights_that_look_like_another() -> None:
    kinds = {w.name: parameter_kind(w) for name in NAMES for w, _ in weights(name)}
    assert kinds["position"] == kinds["unembedding"] == "embedding"
    assert kinds["bq"] == kinds["bk"] == kinds["b_gate"] == kinds["sinks"] == "vector"  # [N,H] ...
    assert kinds["router"] == kinds["w_uk"] == kinds["wo"] == "matrix"
    scale = Weight(name="shared_scale", dims=("D",), shape=(8,), part="moe", is_matmul=True)
    assert parameter_kind(scale) == "vector"
    shift = Weight(
        name="b_unembedding", dims=("V",), shape=(9,), part="unembedding", is_matmul=False
    )
    assert parameter_kind(shift) == "vector"


def optimizer_bytes(name: str, optimizer: str) -> float:
    job = sw.Train(batch=1, seq=1, optimizer=optimizer, master=None)
    return sum(n * job.optimizer_bytes_of(kind) for kind, n in by_kind(name).items())


@pytest.mark.parametrize("name", NAMES)
def test_muon_lies_between_momentum_and_adamw(name: str) -> None:
    muon = optimizer_bytes(name, "muon")
    assert optimizer_bytes(name, "momentum") < muon < optimizer_bytes(name, "adamw")


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b"])
def test_what_adafactor_leaves_out_is_small(name: str) -> None:
    """Its rows and columns, with attention's matrices as [D, heads x width]: 0.1 % of AdamW's."""
    rows_and_columns = 0
    for weight, count in weights(name):
        if parameter_kind(weight) != "vector":
            model = sw.model(name).d_model
            rows_and_columns += count * (model + weight.size // model)
    left_out = rows_and_columns * 4  # fp32
    assert 0 < left_out < 1e-3 * optimizer_bytes(name, "adamw")
    assert optimizer_bytes(name, "adafactor") < left_out  # vectors are less still


def orthogonalised(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Newton-Schulz on a wide matrix as Muon does it, and the FLOPs of its products."""
    flops = 0

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        nonlocal flops
        flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    x = x / np.linalg.norm(x)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = product(x, x.T)
        x = 3.4445 * x + product(-4.7750 * gram + 2.0315 * product(gram, gram), x)
    return x, flops


@pytest.mark.parametrize(("n", "m"), [(8, 8), (8, 32), (24, 25)])
def test_muon_flops_are_those_of_its_products(n: int, m: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(n, m))
    result, flops = orthogonalised(matrix)
    assert muon_flops(n, m) == muon_flops(m, n) == flops
    if m > n:  # what was counted does what it is for: singular values near 1, from 0.68 to 1.13
        assert np.abs(np.linalg.svd(result, compute_uv=False) - 1).max() < 0.35


@given(st.integers(1, 2**16), st.integers(1, 2**16))
def test_muon_flops_of_a_square_are_the_most_for_its_side(n: int, more: int) -> None:
    assert muon_flops(n, n) == 30 * n**3
    assert muon_flops(n, n + more) > muon_flops(n, n)
    assert muon_flops(n, n + more) < muon_flops(n + more, n + more)


def test_muon_flops_of_arrays() -> None:
    rows, columns = np.array([4096.0, 14336.0]), np.array([14336.0, 4096.0])
    assert muon_flops(rows, columns).tolist() == [muon_flops(4096.0, 14336.0)] * 2
    assert muon_flops(4096, 14336, steps=1) * 5 == muon_flops(4096, 14336)
