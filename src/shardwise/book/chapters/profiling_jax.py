"""Sections 9 and 10, profiling and programming TPUs in JAX."""

from __future__ import annotations

import math

from shardwise.book.givens import ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import roofline, shards
from shardwise.formulas.links import collective_matmul
from shardwise.ops import collective


@solves("profiling-tiling", formula="each dim up to a multiple of the tile; growth")
def tiling(g: Given) -> Answer:
    padded = shards.padded_shape(g["shape"], g["tile"])
    return [padded, math.prod(padded) / math.prod(g["shape"])]


@solves("profiling-local-shapes", formula="X[B_X,T,D], W[D,F_Y]; B T / X")
def local_shapes(g: Given) -> Answer:
    mesh = {"X": g["dp"], "Y": g["mp"]}
    activations = shards.local_shape("X[B_X,T,D]", g["X"], mesh)
    weights = shards.local_shape("W[D,F_Y]", g["W"], mesh)
    return [activations, weights, math.prod(activations[:2])]


@solves("profiling-ffw-time", formula="2BDF / (cores C)")
def up_projection(g: Given) -> Answer:
    matmul = roofline.Matmul(B=g["tokens"], D=g["D"], F=g["F"])
    return roofline.math_s(matmul.flops / g["cores"], g["flops_per_core"])


@solves("profiling-reduce-scatter", formula="V = 2BTD; V / W_ici")
def reduce_scatter(g: Given) -> Answer:
    n_bytes = shards.local_bytes("x[B,T,D]", g["shape"], {}, g["bytes_per_elem"])
    span = ring(2, g["ici_bidi_bytes_per_s"])
    return [n_bytes, collective.time_s("reduce_scatter", n_bytes, span)]


@solves("profiling-q2-gain", formula="time before / time after", uses_library=False)
def measured_gain(g: Given) -> Answer:
    return g["before_ms"] / g["after_ms"]


@solves("jax-shardmap-mean", formula="mean over shards of their first elements", uses_library=False)
def mean_of_shards(g: Given) -> Answer:
    starts = range(0, g["n"], g["n"] // g["shards"])
    mean_start = sum(starts) / g["shards"]
    return [mean_start + index for index in range(g["take"])]


@solves(
    "jax-collective-matmul", formula="naive / overlapped; over the baseline - 1", uses_library=False
)
def measured_overlap(g: Given) -> Answer:
    overhead = g["collective_us"] / g["baseline_us"] - 1
    naive_overhead = g["naive_us"] / g["baseline_us"] - 1
    return [g["naive_us"] / g["collective_us"], overhead, naive_overhead]


@solves("jax-collective-matmul-steps", formula="n - 1 permutes, n matmuls of D/n")
def overlap_steps(g: Given) -> Answer:
    steps = collective_matmul(g["Y"], g["D"])
    return [steps.n_permutes, steps.n_matmuls, steps.chunk]
