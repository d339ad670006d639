"""Products, attention and the loss as a CPU computes them, with gradients: against plain ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.models import Attention
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.devices import devices_for
from shardwise.runtime.kernels import attention, cpu
from shardwise.runtime.training.programs import step_of
from shardwise.train.guard import guarded_optimizer
from shardwise.train.recipe import Recipe
from tests.host import host
from tests.unit.runtime.near import assert_near
from tests.unit.runtime.steps import compiled

NEAR = {"abs": 2e-5, "rel": 2e-5}  # sums of some hundred fp32 products of numbers about 1


def normal(*shape: int) -> Any:
    seed = int(np.prod(shape)) + len(shape)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def scans(jaxpr: Any) -> Iterator[Any]:
    """The loops over layers of a program, in its order."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from scans(inner)


def same(one: Callable[..., Any], other: Callable[..., Any], *given: Any) -> None:
    """Results, and gradients of all that is given under a weight for each number."""

    def told(function: Callable[..., Any]) -> Any:
        result, pull = jax.vjp(function, *given)
        return [result, *pull(normal(*result.shape))]

    program = jax.jit(told, static_argnums=0)
    assert_near(program(one), program(other), **NEAR)


@pytest.mark.parametrize(
    ("letters", "x", "w"),
    [
        ("abc,cd->abd", (2, 6, 8), (8, 16)),
        ("abc,cd->abd", (3, 5, 16), (16, 8)),  # an odd number of rows; wider in than out
        ("abc,cde->abde", (2, 4, 8), (8, 2, 3)),
        ("abcd,cde->abe", (2, 4, 2, 3), (2, 3, 8)),
        ("abc,dc->abd", (2, 6, 8), (16, 8)),  # a tied embedding
        ("abc,dc->abd", (3, 5, 8), (4, 8)),
        ("abcd,ecd->abe", (2, 4, 2, 3), (5, 2, 3)),
        ("eab,ebc->eac", (2, 4, 8), (2, 8, 3)),  # a matrix for each of e: XLA's own
    ],
)
def test_products(letters: str, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    def by_cpu(x: Any, w: Any) -> Any:
        return cpu.matmul_einsum(letters, x, w)

    same(by_cpu, lambda x, w: jnp.einsum(letters, x, w), normal(*x), normal(*w))


@pytest.mark.parametrize("narrow", [True, False], ids=["bf16", "none"])
def test_narrow_products_sum_in_fp32(narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4,096 ones and their gradients a sum in 16 bits would give 256."""
    monkeypatch.setattr(cpu, "multiplies_bf16", lambda: narrow)
    x, w = jnp.ones((1, 2, 4096), jnp.bfloat16), jnp.ones((4096, 4), jnp.bfloat16)
    y, pull = jax.vjp(lambda x, w: cpu.matmul_einsum("abc,cd->abd", x, w), x, w)
    assert y.dtype == jnp.bfloat16
    assert float(y[0, 0, 0]) == 4096
    assert {g.dtype for g in pull(y)} == {jnp.dtype(jnp.bfloat16)}
    wide = cpu.matmul_einsum("abc,cd->abd", x, w, wide=True)
    assert wide.dtype == jnp.float32
    assert cpu.matmul_einsum("abc,dc->abd", x, w.T, wide=True).dtype == jnp.float32


@pytest.mark.parametrize("letters", ["abc,cd->abd", "abc,dc->abd"], ids=["own", "tied"])
@pytest.mark.parametrize(("inputs", "outputs"), [(128, 64), (64, 128)])
def test_gradients_in_bf16_as_this_processor_multiplies(
    inputs: int, outputs: int, letters: str
) -> None:
    """XLA has no product of 16-bit numbers whose result is transposed: it would fail to run."""
    x, dy = normal(2, 64, inputs), normal(2, 64, outputs)
    w = normal(*(outputs, inputs) if "dc" in letters else (inputs, outputs))

    @jax.jit
    def gradients(x: Any, w: Any, dy: Any) -> Any:
        return jax.vjp(lambda x, w: cpu.matmul_einsum(letters, x, w), x, w)[1](dy)

    narrow = [array.astype(jnp.bfloat16) for array in (x, w, dy)]
    of_rounded = gradients(*(array.astype(jnp.float32) for array in narrow))
    for got, wanted in zip(gradients(*narrow), of_rounded, strict=True):
        np.testing.assert_allclose(got.astype(jnp.float32), wanted, rtol=2e-2, atol=0.2)


@pytest.mark.parametrize("n_tokens", [32, 512], ids=["one block", "four blocks"])
def test_attention(n_tokens: int) -> None:
    a = Attention(n_heads=4, n_kv_heads=2, d_head=8)
    q, k, v = normal(1, n_tokens, 4, 8), normal(1, n_tokens, 2, 8), normal(1, n_tokens, 2, 4)
    assert cpu.supports_attention(a, q, k)

    def other(q: Any, k: Any, v: Any) -> Any:
        mask = jnp.tril(jnp.ones((n_tokens, n_tokens), bool))
        return attention._unfused(q, k, v, a, 0.3, None, None, mask)

    same(lambda q, k, v: cpu.attend(q, k, v, 0.3), other, q, k, v)


@pytest.mark.parametrize("changed", [{"window": 8}, {"softcap": 30.0}, {"causal": False}])
def test_other_attention_is_left_to_others(changed: dict[str, Any]) -> None:
    a = Attention(n_heads=4, n_kv_heads=2, d_head=8, **changed)
    assert not cpu.supports_attention(a, normal(1, 32, 4, 8), normal(1, 32, 2, 8))


def test_cross_entropy() -> None:
    logits, targets = 5 * normal(2, 6, 32), jnp.arange(12).reshape(2, 6)

    def other(logits: Any) -> Any:
        at = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(at, targets[..., None], axis=-1).sum()

    same(lambda x: cpu.cross_entropy(x, targets), other, logits)


@pytest.mark.parametrize(("narrow", "read"), [(True, "bf16"), (False, "f32")])
@pytest.mark.parametrize("rows", [1, cpu.MIN_READS_TO_CAST])
def test_narrow_numbers_are_multiplied_as_the_processor_is_fast(
    narrow: bool, read: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without products of bf16 as fp32 numbers, but for a few rows, which read a weight seldom."""
    monkeypatch.setattr(cpu, "multiplies_bf16", lambda: narrow)
    x, w = jnp.ones((1, rows, 8), jnp.bfloat16), jnp.ones((8, 16), jnp.bfloat16)
    made = jax.make_jaxpr(lambda x, w: cpu.matmul_einsum("abc,cd->abd", x, w))(x, w)
    assert ("f32[8,16]" in str(made)) == (read == "f32" and rows > 1)


def test_no_step_copies_the_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New ones lie where the old ones did; in no order with the weights they would not."""
    sizes = {"n_layers": 2, "d_model": 64, "d_ff": 128, "n_heads": 4, "n_kv_heads": 4, "vocab": 256}
    job = sw.Train(batch=2, seq=16, weights="fp32", compute="fp32", gradients="fp32")
    plan = sw.plan(sw.ModelConfig.dense(name="tiny", **sizes), host(tmp_path, 1), job)

    def copied() -> list[str]:
        case, recipe = rebuild(plan), Recipe(steps=10, rate=1e-3)
        made = step_of(
            case, devices_for(case.system, "it"), make_optimizer=guarded_optimizer(recipe)
        )
        return re.findall(r"f32\[\d\S* copy\(%state__moments\S+", str(compiled(made).as_text()))

    assert copied() == []
    monkeypatch.setattr(cpu, "write_after", lambda arrays, new, old: new)
    assert len(copied()) > 9


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b"])
def test_a_layer_saves_what_is_planned(name: str, tmp_path: Path) -> None:
    """No second copy of an input of several products, of weights, or of elementwise operations.

    Experts have a slot for every token, as where a model is trained.
    """
    sizes = "n_layers=4,d_model=64,d_ff=192,n_heads=4,n_kv_heads=2,d_head=16,vocab=64"
    job = sw.Train(batch=4, seq=64, weights="fp32", compute="fp32", gradients="fp32")
    plan = sw.plan(sw.model(f"{name},{sizes}"), host(tmp_path, 1), job, {"remat": "none"})
    case = rebuild(plan)
    step = step_of(case, devices_for(case.system, "it"))
    jaxpr = jax.make_jaxpr(step.function())(*step.shapes())
    forward = next(scan for scan in scans(jaxpr.jaxpr) if scan.outvars[scan.params["num_carry"] :])
    stacks = [stack.aval for stack in forward.outvars[forward.params["num_carry"] :]]
    saved = sum(stack.size * stack.dtype.itemsize for stack in stacks)
    assert 0.8 * plan.memory.activations < saved < 1.2 * plan.memory.activations


def test_moments_of_a_weight_that_is_no_number_stay() -> None:
    new, old = normal(3, 4), normal(4, 3).T
    weights = {"good": normal(2), "bad": jnp.full(5, jnp.nan)}
    found = cpu.write_after(
        weights,
        {"mean": {"good": new, "bad": new}, "count": new},
        {"mean": {"good": old, "bad": old}, "count": old},
    )
    assert (found["mean"]["good"] == new).all()
    assert (found["mean"]["bad"] == old).all()
    assert (found["count"] == new).all()
