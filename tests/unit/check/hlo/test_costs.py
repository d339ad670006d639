"""FLOPs are those of the einsums that were written; bytes those of the arrays that are moved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.check.hlo.costs import Cost, program_costs
from shardwise.check.hlo.scopes import scope
from tests.unit.check.hlo.kept import mesh, program, wrap
from tests.unit.check.hlo.make import B, D, E, F, H, L, N, T, V

STEPS = ["train_v5e", "train_v5p", "train_tpu7x", "train_gpu", "train_cpu", "slices_v5e"]
MORE_SCORES = ["train_v6e"]  # its compiler computes the scores of the remat three times


def layer_flops(name):
    """2 m n k of each product of a layer on one chip."""
    sizes = mesh(name)
    batch = B // sizes["fsdp"] // sizes.get("data", 1)
    heads, width = N // sizes["tensor"], F // sizes["tensor"]
    tokens = batch * T
    scores = 2 * batch * heads * T * T * H
    return {
        "attn.q": 2 * tokens * D * heads * H,
        "attn.scores": scores,
        "attn.values": scores,
        "attn.out": 2 * tokens * heads * H * D,
        "mlp.up": 2 * tokens * D * width,
        "mlp.down": 2 * tokens * width * D,
    }


def step_flops(name):
    """By operation and pass: twice backward; the remat needs no second output of the layer."""
    found = {}
    for op, n in layer_flops(name).items():
        found[op, "forward"] = L * n
        found[op, "backward"] = 2 * L * n
        if op != "mlp.down":
            found[op, "remat"] = L * n
    sizes = mesh(name)
    tokens = B * T // sizes["fsdp"] // sizes.get("data", 1)
    head = 2 * tokens * D * V // sizes["tensor"]
    return found | {("unembed", "forward"): head, ("unembed", "backward"): 2 * head}


def program_flops(module):
    return sum(op.flops for op in program_costs(module))


def flops_by_scope(ops):
    """By (planned operation, pass)."""
    totals = {}
    for op in ops:
        for op_name, flops in op.cost.products:
            totals[scope(op_name)] = totals.get(scope(op_name), 0) + flops * op.n_runs
    return totals


@pytest.mark.parametrize("name", STEPS)
def test_flops_of_a_step_are_those_of_its_einsums(name):
    assert flops_by_scope(program_costs(program(name))) == step_flops(name)
    assert program_flops(program(name)) == sum(step_flops(name).values())


def test_what_a_compiler_computes_again_is_seen():
    expected = step_flops("train_v6e")
    expected["attn.scores", "remat"] *= 3
    assert flops_by_scope(program_costs(program("train_v6e"))) == expected


def test_kept_activations_are_not_computed_again():
    found = flops_by_scope(program_costs(program("keep_v5e")))
    expected = {k: n for k, n in step_flops("keep_v5e").items() if k[1] != "remat"}
    left = {k: n for k, n in step_flops("keep_v5e").items() if k[1] == "remat"}
    for op in ("attn.values", "mlp.up"):
        del left[op, "remat"]
    assert found == expected | left


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("moe_v5e", 2 * 2 * E * B * T * D * F // 4),
        ("moe_v6e", 2 * 2 * E * B * T * D * F // 4),
        ("moe_gpu", 2 * 2 * E * B * T * D * F // 4),
        ("ring_v5e", 4 * 2 * (B * T // 4) * D * F),
        ("ring_cpu", 4 * 2 * (B * T // 4) * D * F),
        ("pallas_v5e", 2 * (B * T // 4) * D * F),
        ("jit_v5e", 5 * 2 * (B * T // 2) * D * F // 2),
    ],
)
def test_flops_of_the_other_programs(name, expected):
    assert program_flops(program(name)) == expected


def test_a_loop_counts_its_trips():
    ops = [
        op for op in program_costs(program("train_v5p")) if "while/body" in op.instruction.op_name
    ]
    products = [op for op in ops if op.cost.flops]
    assert {op.n_runs for op in products} == {L}
    assert all(op.flops == L * op.cost.flops for op in products)


def test_a_kernel_says_what_it_costs_or_the_caller_does():
    (kernel,) = [op for op in program_costs(program("pallas_v5e")) if op.cost.flops]
    assert kernel.cost.hbm_bytes == 2 * (B * T // 4 * D + D * F)
    body = """  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %k = f32[8,128]{1,0:T(8,128)} custom-call(%a), custom_call_target="tpu_custom_call\""""
    (op,) = [op for op in program_costs(wrap(body)) if op.instruction.name == "k"]
    assert op.has_unknown_kernel
    assert op.cost.hbm_bytes == 2 * 8 * 128 * 4
    hook = lambda one: Cost(flops=7, elementwise=0, hbm_bytes=3)
    (op,) = [op for op in program_costs(wrap(body), hook) if op.instruction.name == "k"]
    assert (op.flops, op.hbm_bytes, op.has_unknown_kernel) == (7, 3, False)


def test_a_library_product_tells_its_summed_dims():
    config = (
        '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    )
    body = f"""  %a = f32[8,6]{{1,0}} parameter(0)
  %b = f32[6,4]{{1,0}} parameter(1)
  ROOT %g = (f32[8,4], s8[16]) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", \
backend_config={config}"""
    assert program_flops(wrap(body)) == 2 * 8 * 4 * 6


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 6),
    window=st.integers(1, 6),
    stride=st.integers(1, 3),
    dilate=st.integers(1, 3),
    low=st.integers(-1, 4),
    high=st.integers(0, 4),
)
def test_a_convolution_counts_the_elements_that_are_there(size, window, stride, dilate, low, high):
    room = (size - 1) * dilate + 1 + low + high
    out = (room - window) // stride + 1
    if out < 1:
        return
    body = f"""  %a = f32[2,3,{size}]{{2,1,0}} parameter(0)
  %b = f32[3,5,{window}]{{2,1,0}} parameter(1)
  ROOT %c = f32[2,5,{out}]{{2,1,0}} convolution(%a, %b), window={{size={window} \
stride={stride} pad={low}_{high} lhs_dilate={dilate}}}, dim_labels=bf0_io0->bf0"""
    there = {i * dilate + low for i in range(size)}
    pairs = sum(o * stride + k in there for o in range(out) for k in range(window))
    assert program_flops(wrap(body)) == 2 * 2 * 3 * 5 * pairs


MOVES = """
%slice (p: f32[32,8,128], i: s32[]) -> f32[1,8,128] {
  %p = f32[32,8,128]{2,1,0:T(8,128)} parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%p, %i, %i, %i)
}

%write (q: f32[32,8,128], u: f32[1,8,128], j: s32[]) -> f32[32,8,128] {
  %q = f32[32,8,128]{2,1,0:T(8,128)} parameter(0)
  %u = f32[1,8,128]{2,1,0:T(8,128)} parameter(1)
  %j = s32[] parameter(2)
  %v = f32[1,8,128]{2,1,0:T(8,128)} negate(%u)
  ROOT %w = f32[32,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%q, %v, %j, %j, %j)
}

%put (q: f32[32,8,128], u: f32[1,8,128], j: s32[]) -> f32[32,8,128] {
  %q = f32[32,8,128]{2,1,0:T(8,128)} parameter(0)
  %u = f32[1,8,128]{2,1,0:T(8,128)} parameter(1)
  %j = s32[] parameter(2)
  %v = f32[1,8,128]{2,1,0:T(8,128)} negate(%u)
  %k = s32[1,1]{1,0} broadcast(%j), dimensions={}
  ROOT %w = f32[32,8,128]{2,1,0:T(8,128)} scatter(%q, %k, %v), to_apply=%slice
}

%tiles (p: f32[32,8,128]) -> f32[32,8,128] {
  %p = f32[32,8,128]{2,1,0:T(8,128)} parameter(0)
  ROOT %c = f32[32,8,128]{2,1,0:T(4,128)} copy(%p)
}

%same (p: f32[32,8,128]) -> f32[32,8,128] {
  %p = f32[32,8,128]{2,1,0:T(8,128)} parameter(0)
  ROOT %b = f32[32,8,128]{2,1,0:T(8,128)} bitcast(%p)
}

%slice_of_tiles (p: f32[32,8,128], i: s32[]) -> f32[1,8,128] {
  %p = f32[32,8,128]{2,1,0:T(8,128)} parameter(0)
  %i = s32[] parameter(1)
  %t = f32[32,8,128]{2,1,0:T(4,128)} fusion(%p), kind=kLoop, \
output_to_operand_aliasing={{}: (0, {})}, calls=%tiles
  ROOT %s = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%t, %i, %i, %i)
}

%negate_same (p: f32[32,8,128]) -> f32[32,8,128] {
  %p = f32[32,8,128]{2,1,0:T(8,128)} parameter(0)
  %t = f32[32,8,128]{2,1,0:T(8,128)} fusion(%p), kind=kLoop, calls=%same
  ROOT %n = f32[32,8,128]{2,1,0:T(8,128)S(1)} negate(%t)
}
"""
ONE = 8 * 128 * 4


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f32[1,8,128]{2,1,0:T(8,128)} fusion(%a, %i), kind=kLoop, calls=%slice", 2 * ONE),
        ("f32[1,8,128]{2,1,0:T(8,128)S(1)} fusion(%a, %i), kind=kLoop, calls=%slice", ONE),
        ("f32[1,8,128]{2,1,0:T(8,128)} fusion(%a, %i), kind=kLoop, calls=%slice_of_tiles", 2 * ONE),
        ("f32[32,8,128]{2,1,0:T(8,128)S(1)} fusion(%a), kind=kLoop, calls=%negate_same", 32 * ONE),
        ("f32[32,8,128]{2,1,0:T(8,128)} fusion(%a, %b, %i), kind=kLoop, calls=%write", 2 * ONE),
        ("f32[32,8,128]{2,1,0:T(8,128)} fusion(%a, %b, %i), kind=kInput, calls=%put", 2 * ONE),
        ("f32[32,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%a, %b, %i, %i, %i)", 2 * ONE),
        ("f32[32,8,128]{2,1,0:T(8,128)} negate(%a)", 64 * ONE),
        ("f32[32,8,128]{2,1,0:T(8,128)} multiply(%a, %a)", 64 * ONE),
        ("f32[32,8,128]{2,1,0:T(8,128)S(1)} copy(%a)", 32 * ONE),
        ("f32[32,8,128]{2,1,0:T(8,128)S(5)} copy(%a)", 32 * ONE),
        ("f32[32,1024]{1,0:T(8,128)} bitcast(%a)", 0),
        ("f32[1,8,100]{2,1,0:T(8,128)} slice(%b), slice={[0:1], [0:8], [0:100]}", 2 * ONE),
    ],
)
def test_bytes_of_one_instruction(line, expected):
    body = f"""  %a = f32[32,8,128]{{2,1,0:T(8,128)}} parameter(0)
  %b = f32[1,8,128]{{2,1,0:T(8,128)}} parameter(1)
  %i = s32[]{{:S(6)}} constant(0)
  ROOT %r = {line}"""
    found = {op.instruction.name: op.cost.hbm_bytes for op in program_costs(wrap(body, MOVES))}
    assert found["r"] == expected


def test_the_bytes_of_a_ring_are_counted_once_a_turn():
    """Each turn reads a block and the weight and writes the product; the sum is another op."""
    products = [op for op in program_costs(program("ring_cpu")) if op.cost.flops]
    block, weight, product = B * T // 4 * D * 4, D * F * 4, B * T // 4 * F * 4
    assert sum(op.hbm_bytes for op in products) == 4 * (block + weight + product)


def test_elementwise_work_is_counted_apart():
    body = """  %a = f32[8,4]{1,0} parameter(0)
  %b = f32[8,4]{1,0} add(%a, %a)
  ROOT %c = f32[8]{0} reduce(%b, %b), dimensions={1}, to_apply=%slice"""
    ops = program_costs(wrap(body, MOVES))
    assert sum(op.cost.elementwise for op in ops) == 32 + 32
    assert np.sum([op.flops for op in ops]) == 0


def test_the_links_of_a_chain_count_their_own_work_only():
    """What the collective itself moves belongs to the network, as its start and its end say."""
    for op in program_costs(program("train_v5e")):
        if op.instruction.name.startswith("async-collective"):
            assert op.cost.hbm_bytes == 0
