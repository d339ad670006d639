"""Products that cost more than they need to, in programs compiled here, and their hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import msgspec
import pytest

from shardwise.check.hlo.costs import program_costs
from shardwise.check.hlo.scopes import BACKWARD, REMAT
from shardwise.check.hlo.text import Module, parse
from shardwise.profile.categories import ELEMENTWISE, HOST, MATMUL, category
from shardwise.profile.costs import instruction_costs
from shardwise.profile.products import product_faults
from shardwise.profile.programs import ProgramOperation
from shardwise.profile.result import CategoryTime, MemoryPeak, OperationTime, Profile
from shardwise.report.profile import document
from shardwise.report.profile_hints import hints
from tests.unit.compare.recorded_runs import FOLDER as RECORDED

Cast = Callable[[jax.Array], jax.Array]


def step(weights_dtype: jnp.dtype, cast: Cast, vocab: int = 384) -> Module:
    """A training step of two products in bf16, or as `cast` makes them, as compiled here."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True))
        hidden = jax.nn.gelu(cast(normed.astype(jnp.bfloat16)) @ cast(weights[0]))
        result = (cast(hidden) @ cast(weights[1])).astype(jnp.bfloat16)
        return jnp.mean(result.astype(jnp.float32) ** 2)

    def train(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        gradients = jax.grad(loss)(weights, x)
        return [weight - gradient for weight, gradient in zip(weights, gradients, strict=True)]

    shapes = [(256, 512), (512, vocab)]
    weights = [jax.ShapeDtypeStruct(shape, weights_dtype) for shape in shapes]
    x = jax.ShapeDtypeStruct((128, 256), jnp.bfloat16)
    return parse(jax.jit(train).lower(weights, x).compile().as_text())


def cast_share(module: Module) -> float:
    """The share of FLOPs that are said to be of cast arrays."""
    flops = cast_flops = 0
    for op in program_costs(module):
        faults = product_faults(module, [op.instruction.name], "CPU")
        flops += op.flops
        cast_flops += op.flops * any(fault.is_cast for fault in faults.values())
    return cast_flops / flops


def test_fp32_products_of_bf16_arrays() -> None:
    """CPUs compute bf16 in fp32 too: only casts that the program asks for count."""

    def to_fp32(array: jax.Array) -> jax.Array:
        return array.astype(jnp.float32)

    def to_bf16(array: jax.Array) -> jax.Array:
        return array.astype(jnp.bfloat16)

    assert cast_share(step(jnp.bfloat16, to_fp32)) > 0.3
    assert cast_share(step(jnp.bfloat16, lambda array: array)) == 0
    assert cast_share(step(jnp.float32, to_bf16)) == 0  # mixed precision


@pytest.mark.parametrize(
    ("vocab", "kind", "dim"),
    [(384, "CPU", 0), (385, "CPU", 385), (385, "TPU", 385), (600, "TPU", 600), (600, "GPU", 0)],
)
def test_dims_that_fill_no_vectors(vocab: int, kind: str, dim: int) -> None:
    module = step(jnp.bfloat16, lambda array: array, vocab)
    names = [name for part in module.computations.values() for name in part.instructions]
    faults = product_faults(module, names, kind)
    assert max(fault.odd_dim for fault in faults.values()) == dim


def hints_of(**changes: object) -> list[str]:
    """The hints on a step with one product, which has these fields."""
    profile = msgspec.json.decode((RECORDED / "fsdp.profile.json").read_bytes(), type=Profile)
    product = OperationTime(
        name="unembed",
        phase=BACKWARD,
        category=MATMUL,
        count=1.0,
        seconds=0.2 * profile.step_s,
        share=0.2,
        flops=1e9,
    )
    product = replace(product, **changes)  # type: ignore[arg-type]
    memory = MemoryPeak(
        bytes=3 * 10**6, arguments=10**6, temporaries=0, instruction="", operation="", arrays=()
    )
    return [
        *hints(
            replace(
                profile,
                operations=(product,),
                compute_s=0.9 * profile.step_s,
                updated_elements=10**6,
                memory=memory,
                plan="",
            )
        )
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"upcast_flops": 4e8}, "unembed: products in fp32 of arrays that are cast from 16 bits"),
        ({"odd_dim": 12_289}, "of products with a dim of 12,289"),
        ({"flops": 1e8}, "the tokens of a step: its products do only 100 FLOPs for each element"),
        ({"phase": REMAT}, "save more arrays"),
    ],
)
def test_faults_of_products_have_a_hint(changes: dict[str, object], words: str) -> None:
    (hint,) = hints_of(**changes)
    assert words in hint


@pytest.mark.parametrize(("waits_for", "is_first"), [("dispatch", True), ("compilation", False)])
def test_few_tokens_come_before_the_waiting_that_they_cause(waits_for: str, is_first: bool) -> None:
    profile = msgspec.json.decode((RECORDED / "fsdp.profile.json").read_bytes(), type=Profile)
    product = OperationTime(
        name="unembed", phase=BACKWARD, category=MATMUL, count=1.0,
        seconds=0.2 * profile.step_s, share=0.2, flops=1e8,
    )  # fmt: skip
    wait = replace(product, name=waits_for, phase="", category=HOST, share=0.3)
    shares = {MATMUL: 0.2, HOST: 0.3}
    categories = [
        CategoryTime(category=name, seconds=share * profile.step_s, share=share)
        for name, share in shares.items()
    ]
    waiting = replace(
        profile, operations=(product, wait), categories=tuple(categories), updated_elements=10**6
    )
    headline = document(waiting)["headline"]
    assert ("Look first at the tokens of a step" in headline) == is_first
    assert ("host-bound" in headline) != is_first


@pytest.mark.parametrize(("rate", "has_hint"), [(0.5, True), (0.95, False)])
def test_an_odd_dim_has_a_hint_where_its_products_are_slower(rate: float, has_hint: bool) -> None:
    profile = msgspec.json.decode((RECORDED / "fsdp.profile.json").read_bytes(), type=Profile)
    odd = OperationTime(
        name="unembed", phase="forward", category=MATMUL, count=1.0,
        seconds=0.5 * profile.step_s, share=0.5, flops=rate * 1e9, odd_dim=4001,
    )  # fmt: skip
    operations = (odd, replace(odd, name="mlp.up", flops=1e9, odd_dim=0))
    found = [*hints(replace(profile, operations=operations, updated_elements=None))]
    assert [f"at {rate:.0%}".replace("%", " %") in hint for hint in found] == [True] * has_hint


@pytest.mark.parametrize("changes", [{}, {"upcast_flops": 2e8}, {"phase": "", "flops": 1e8}])
def test_a_product_without_a_fault_has_none(changes: dict[str, object]) -> None:
    assert hints_of(**changes) == []


def test_sums_of_products_are_products_where_the_model_has_one() -> None:
    """The engine multiplies a few rows by sums on CPUs; the same sum of a norm is none."""

    def two_sums(x: jax.Array, weight: jax.Array) -> jax.Array:
        with jax.named_scope("mlp.up"):
            h = jnp.sum(weight.astype(jnp.float32) * x[None, :], axis=-1)
        with jax.named_scope("ffn_norm"):
            return h * jnp.sum(h * h)

    x, weight = jnp.ones(256), jnp.ones((512, 256), jnp.int8)
    module = parse(jax.jit(two_sums).lower(x, weight).compile().as_text())
    names = [name for part in module.computations.values() for name in part.instructions]
    costs = instruction_costs(module, names)
    products = [
        cost.flops for name, cost in costs.items() if name in module.entry_computation.instructions
    ]
    assert sum(products) == 2 * 512 * 256


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        ("jit(decode)/mlp.up/reduce_sum", MATMUL),
        ("jit(decode)/attn.v/transpose", MATMUL),
        ("jit(decode)/unembed/reduce_sum", MATMUL),
        ("jit(decode)/moe.combine/reduce_sum", ELEMENTWISE),
        ("jit(decode)/ffn_norm/reduce_sum", ELEMENTWISE),
    ],
)
def test_the_category_of_a_sum_of_products(op_name: str, expected: str) -> None:
    operation = ProgramOperation(
        opcode="fusion",
        opcodes=frozenset({"fusion", "multiply", "reduce", "transpose"}),
        target="",
        op_name=op_name,
    )
    assert category("reduce_fusion.1", operation) == expected
