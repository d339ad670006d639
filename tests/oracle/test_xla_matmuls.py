"""Sharded matmuls: what the algebra derives against what XLA compiles, on eight devices.

XLA gets the shardings of the two inputs and of the output, as `derive` does, and chooses for itself
what to communicate.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from shardwise.ops.notation import parse_einsum
from shardwise.ops.sharded import Program, axes_of, choices, derive
from tests.oracle import xla
from tests.oracle.hlo import Collective, Mesh, Module

pytestmark = pytest.mark.oracle

SIZES = {"I": 16, "J": 32, "K": 64, "B": 16, "T": 24, "D": 32, "F": 64, "E": 8, "C": 16}
MESHES = {1: (8,), 2: (2, 4), 3: (2, 2, 2)}
# An index computed for a slice counts as FLOPs in XLA's own analysis.
INDEX_FLOPS = 8

# XLA compiles these into what `derive` says: the book's four cases, ...
DERIVED = """
A[I_X,J] . B[J,K] -> C[I_X,K]
A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]
A[I,J_X] . B[J,K] -> C[I,K]
A[I,J_X] . B[J_X,K] -> C[I,K]
A[I,J_X] . B[J_X,K] -> C[I_X,K]
A[I,J_X] . B[J_X,K] -> C[I,K_X]
A[I_X,J] . B[J,K_X] -> C[I_X,K]
A[I_X,J] . B[J,K_X] -> C[I,K_X]
A[I_X,J_Y] . B[J_Y,K] -> C[I_X,K]
A[I_X,J_Y] . B[J_X,K_Y] -> C[I_X,K_Y]
In[B_X,D] . dOut[B_X,F] -> dW[D,F]
In[B_X,D] . W[D_X,F] -> Out[B_X,F]
In[B_X,D] . dOut[B_X,F] -> dW[D_X,F]
dOut[B_X,F] . W[D_X,F] -> dIn[B_X,D]
In[B_XY,D] . W[D_XY,F] -> Out[B_XY,F]
In[B,D_Y] . W[D,F_Y] -> Tmp[B,F_Y]
Tmp[B,F_Y] . W[F_Y,D] -> Out[B,D_Y]
x[B,T_Y,D] . W[D,F_Y] -> h[B,T,F_Y]
h[B,T,F_Y] . W[F_Y,D] -> y[B,T_Y,D]
dh[B,T,F_Y] . W[D,F_Y] -> dx[B,T_Y,D]
x[B,T_Y,D] . dh[B,T,F_Y] -> dW[D,F_Y]
dy[B,T_Y,D] . W[F_Y,D] -> dh[B,T,F_Y]
h[B,T,F_Y] . dy[B,T_Y,D] -> dW[F_Y,D]
x[B_X,T_Y,D] . W[D_X,F_Y] -> h[B_X,T,F_Y]
h[B_X,T,F_Y] . W[F_Y,D_X] -> y[B_X,T_Y,D]
dh[B_X,T,F_Y] . W[D_X,F_Y] -> dx[B_X,T_Y,D]
x[B_X,T_Y,D] . dh[B_X,T,F_Y] -> dW[D_X,F_Y]
dy[B_X,T_Y,D] . W[F_Y,D_X] -> dh[B_X,T,F_Y]
h[B_X,T,F_Y] . dy[B_X,T_Y,D] -> dW[F_Y,D_X]
x[B,D_X] . W[D_X,F_Y] -> h[B,F_Y]
h[B,F_Y] . W[F_Y,D_X] -> y[B,D_X]
In[B_XZ,D] . W[D_X,F_Y] -> Out[B_XZ,F_Y]
In[B_XZ,D] . dOut[B_XZ,F_Y] -> dW[D_X,F_Y]
x[E_X,C,D] . W[E_X,D,F] -> h[E_X,C,F]
x[E,C_X,D] . W[E_X,D,F] -> h[E_X,C,F]
h[E_X,C,F] . W[E_X,F,D] -> y[E,C_X,D]
""".strip().splitlines()

# ... and these into another of `choices`: kind, axes, bytes.
OTHER = {
    # Slice A along J for nothing and add small results, instead of gathering a large B.
    "A[I_X,J] . B[J_Y,K] -> C[I_X,K]": Collective("all_reduce", ("Y",), 2048),
    # Gather a small A, instead of scattering the larger sums.
    "A[I,J_X] . B[J,K] -> C[I,K_X]": Collective("all_gather", ("X",), 2048),
    # Exchange A, instead of scattering the sums: an eighth of the bytes on the wire.
    "A[I,J_X] . B[J,K] -> C[I_X,K]": Collective("all_to_all", ("X",), 2048),
}


def mesh_of(text: str) -> Mesh:
    """Eight devices over exactly the axes that are named: XLA has no axis to spare for tricks."""
    axes = sorted(axes_of(parse_einsum(text)))
    return dict(zip(axes, MESHES[len(axes)], strict=True))


@functools.cache
def compiled(text: str) -> tuple[Module, float]:
    """The program, and the FLOPs that XLA's cost analysis gives it."""
    found = xla.compile_einsum(parse_einsum(text), SIZES, mesh_of(text))
    return xla.read(found), found.cost_analysis()["flops"]


def planned(program: Program, mesh: Mesh) -> Counter[Collective]:
    """The collectives of one of our programs; a slice moves nothing."""
    return Counter(
        Collective(
            move.kind,
            tuple(a for a in mesh if a in move.axes),
            int(move.joined_bytes(SIZES, mesh, xla.F32)),
        )
        for move in program.moves
        if move.kind != "slice"
    )


@pytest.mark.parametrize("text", DERIVED)
def test_xla_compiles_what_derive_says(text):
    mesh, program = mesh_of(text), derive(parse_einsum(text))
    module, _ = compiled(text)
    assert module.collectives(mesh) == planned(program, mesh)
    assert module.dot_flops() == program.local_flops(SIZES, mesh)


@pytest.mark.parametrize("text", OTHER)
def test_xla_chooses_another_of_our_choices(text):
    mesh, einsum = mesh_of(text), parse_einsum(text)
    module, _ = compiled(text)
    found = module.collectives(mesh)
    assert found == Counter([OTHER[text]])
    assert found != planned(derive(einsum), mesh)
    same = [p for p in choices(einsum) if planned(p, mesh) == found]
    assert module.dot_flops() in [p.local_flops(SIZES, mesh) for p in same]


@pytest.mark.parametrize("text", [*DERIVED, *OTHER])
def test_cost_analysis_adds_only_reductions_to_the_flops_of_the_dots(text):
    module, flops = compiled(text)
    mesh = mesh_of(text)
    reduced = sum(c.n_bytes // xla.F32 * n for c, n in module.collectives(mesh).items() if adds(c))
    assert 0 <= flops - module.dot_flops() - reduced <= INDEX_FLOPS


def adds(collective: Collective) -> bool:
    return collective.kind in ("all_reduce", "reduce_scatter")


def test_programs_that_xla_did_not_choose_differ_from_its_own():
    text = "x[B_X,T_Y,D] . W[D_X,F_Y] -> h[B_X,T,F_Y]"
    mesh = mesh_of(text)
    found = compiled(text)[0].collectives(mesh)
    programs = [planned(p, mesh) for p in choices(parse_einsum(text))]
    assert len(programs) > 3
    assert programs.count(found) == 1
