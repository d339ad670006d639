"""Sections 9 and 10, profiling and programming TPUs in JAX."""

from __future__ import annotations

import math

from shardwise.book.givens import ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import roofline, shards
from shardwise.formulas.links import collective_matmul
from shardwise.ops import collective


@solves("profiling-tiling", formula="each dim up to a multiple of the tile; growth")
def tiling(given: Given) -> Answer:
    padded = shards.padded_shape(given["shape"], given["tile"])
    return [padded, math.prod(padded) / math.prod(given["shape"])]


@solves("profiling-local-shapes", formula="X[B_X,T,D], W[D,F_Y]; B T / X")
def local_shapes(given: Given) -> Answer:
    mesh = {"X": given["dp"], "Y": given["mp"]}
    activations = shards.local_shape("X[B_X,T,D]", given["X"], mesh)
    weights = shards.local_shape("W[D,F_Y]", given["W"], mesh)
    return [activations, weights, math.prod(activations[:2])]


@solves("profiling-ffw-time", formula="2BDF / (cores C)")
def up_projection(given: Given) -> Answer:
    matmul = roofline.Matmul(B=given["tokens"], D=given["D"], F=given["F"])
    return roofline.math_s(matmul.flops / given["cores"], given["flops_per_core"])


@solves("profiling-reduce-scatter", formula="V = 2BTD; V / W_ici")
def reduce_scatter(given: Given) -> Answer:
    n_bytes = shards.local_bytes("x[B,T,D]", given["shape"], {}, given["bytes_per_elem"])
    span = ring(2, given["ici_bidi_bytes_per_s"])
    return [n_bytes, collective.time_s("reduce_scatter", n_bytes, span)]


@solves("profiling-q2-gain", formula="time before / time after", uses_library=False)
def measured_gain(given: Given) -> Answer:
    return given["before_ms"] / given["after_ms"]


@solves("jax-shardmap-mean", formula="mean over shards of their first elements", uses_library=False)
def mean_of_shards(given: Given) -> Answer:
    starts = range(0, given["n"], given["n"] // given["shards"])
    mean_start = sum(starts) / given["shards"]
    return [mean_start + index for index in range(given["take"])]


@solves(
    "jax-collective-matmul", formula="naive / overlapped; over the baseline - 1", uses_library=False
)
def measured_overlap(given: Given) -> Answer:
    overhead = given["collective_us"] / given["baseline_us"] - 1
    naive_overhead = given["naive_us"] / given["baseline_us"] - 1
    return [given["naive_us"] / given["collective_us"], overhead, naive_overhead]


@solves("jax-collective-matmul-steps", formula="n - 1 permutes, n matmuls of D/n")
def overlap_steps(given: Given) -> Answer:
    steps = collective_matmul(given["Y"], given["D"])
    return [steps.n_permutes, steps.n_matmuls, steps.chunk]
