"""Every program that the algebra derives computes the dense product, on simulated chips."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings

from shardwise.errors import BadSharding
from shardwise.models import load
from shardwise.ops.einsum import Array, Einsum
from shardwise.ops.layers import layer_terms, outer_terms
from shardwise.ops.notation import parse_einsum
from shardwise.ops.program import _phase_einsums, shard_einsum, weight_names
from shardwise.ops.sharded import Move, Program, axes_of, choices, derive
from shardwise.strategy.layout import Form, table
from tests.properties.layouts import PRODUCTS, arrays, einsums
from tests.properties.spmd import differences

# Blocks of I_XY are cut by X first, and a program may gather X and leave Y: J_Y is then another
# block. The marks go when `ops.sharded` keeps the order of cuts.

MESH = {"X": 2, "Y": 3, "Z": 2}
SIZES = dict.fromkeys("IJKLM", 12)


def wrong(einsum: Einsum) -> list[str]:
    """Programs of an einsum that some chip leaves with other numbers than the dense product."""
    mesh = {a: MESH[a] for a in axes_of(einsum)}
    return [
        f"{einsum}: {', '.join(map(str, program.moves))}: {found[0]}"
        for program in choices(einsum)
        if (found := differences(program, mesh, SIZES))
    ]


@pytest.mark.parametrize("dims", PRODUCTS, ids="-".join)
def test_every_program_over_one_axis_is_right(dims: tuple[str, str, str]) -> None:
    left, right, output = dims
    layouts = [arrays("A", left, "X"), arrays("B", right, "X"), arrays("C", output, "X", sums=True)]
    found = [Einsum(*parts) for parts in itertools.product(*layouts)]
    assert len(found) == (len(left) + 1) * (len(right) + 1) * (len(output) + 2)
    assert not [line for einsum in found for line in wrong(einsum)]


@settings(max_examples=200)
@given(einsums("XY"))
def test_every_program_over_two_axes_is_right(einsum: Einsum) -> None:
    assert not wrong(einsum)


@settings(max_examples=60)
@given(einsums("XYZ"))
def test_every_program_over_three_axes_is_right(einsum: Einsum) -> None:
    assert not wrong(einsum)


@settings(max_examples=200)
@given(einsums("XY"))
def test_there_is_a_program_for_every_sharding(einsum: Einsum) -> None:
    assume(not einsum.output.partial)
    assert next(choices(einsum), None) is not None
    assert derive(einsum).einsum == einsum


@settings(max_examples=100)
@given(einsums("XY"))
def test_choices_hold_the_derived_program_or_a_cheaper_one(einsum: Einsum) -> None:
    try:
        derived = derive(einsum)
    except BadSharding:
        assume(False)
    mesh = {a: MESH[a] for a in axes_of(einsum)}

    def n_bytes(program: Program) -> float:
        moves = (m for m in program.moves if m.kind != "slice")
        return sum(float(m.joined_bytes(SIZES, mesh, 1)) for m in moves)

    found = list(choices(einsum))
    assert derived in found or min(map(n_bytes, found)) <= n_bytes(derived)


@settings(max_examples=100)
@given(einsums("XY", sums=False))
def test_the_derived_gradients_are_right(einsum: Einsum) -> None:
    for gradient in einsum.gradients():
        # A dim of one input only has no gradient that two arrays give; the products have none.
        mesh = {a: MESH[a] for a in axes_of(gradient)}
        if {*gradient.output.names} <= {*gradient.left.names, *gradient.right.names}:
            assert not differences(derive(gradient), mesh, SIZES)


@pytest.mark.parametrize("name", ["llama3-70b", "gpt2", "deepseek-v3", "gemma2-9b"])
def test_the_training_step_computes_what_it_says(name: str) -> None:
    """Every matmul of a step, both passes, all axes of 2: what the table derives is right."""
    config = load(name)
    terms = layer_terms(config, config.groups[0].layer, 64) + outer_terms(config)
    mesh = {"data": 2, "fsdp": 2, "tensor": 2, "context": 2, "expert": 2}
    rules = table(Form(zero=3, sequence_parallel=True))
    n_checked = 0
    for term in terms:
        einsum = shard_einsum(term.einsum, weight_names(terms), rules)
        for phase in ("forward", "backward"):
            for _, one in _phase_einsums(term, einsum, phase):
                # Heads that keys and values hold fewer of cannot be written for NumPy.
                if any(d.stored for a in (*one.inputs, one.output) for d in a.dims):
                    continue
                sizes = dict.fromkeys(one.dims, 8)
                assert not differences(derive(one), mesh, sizes), one
                n_checked += 1
    assert n_checked >= 18


def test_the_simulation_sees_a_wrong_program() -> None:
    einsum = parse_einsum("A[I,J_X] . B[J_X,K] -> C[I,K]")
    right = derive(einsum)
    mesh, sizes = {"X": 2}, dict.fromkeys("IJK", 4)
    assert not differences(right, mesh, sizes)
    assert differences(Program(einsum, right.local, right.before, ()), mesh, sizes)
    (reduce,) = right.after
    gathered = Move("all_gather", ("X",), Array("C", reduce.after.dims), reduce.after)
    with pytest.raises(ValueError, match="not enough values"):
        differences(Program(einsum, right.local, (), (gathered,)), mesh, sizes)
