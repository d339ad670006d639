"""Section 3, sharded matrices."""

from __future__ import annotations

from shardwise.book.givens import chip, column, given_chip, ring
from shardwise.book.registry import Answer, Given, solves
from shardwise.errors import BadSharding
from shardwise.formulas import shards
from shardwise.formulas.matmul import shard
from shardwise.formulas.thresholds import alpha, latency_bound_bytes, reduce_output_limit
from shardwise.hardware import System, Torus
from shardwise.ops import collective
from shardwise.ops.einsum import Einsum
from shardwise.ops.notation import parse_array, parse_einsum
from shardwise.ops.sharded import Move, axes_of, choices, derive
from shardwise.strategy.mesh import place
from shardwise.strategy.span import Ring, Span


@solves("sharding-local-shapes", formula="each dim / product of its mesh axes")
def local_shapes(given: Given) -> Answer:
    return [shards.local_shape(text, given["shape"], given["mesh"]) for text in given["shardings"]]


@solves("sharding-code-shapes", formula="each dim / product of its mesh axes")
def code_shapes(given: Given) -> Answer:
    return [
        shards.local_shape(given["A_spec"], given["A"], given["mesh"]),
        shards.local_shape(given["B_spec"], given["B"], given["mesh"]),
    ]


@solves("sharding-invalid", formula="a mesh axis shards at most one dim of an array")
def legal(given: Given) -> Answer:
    answers = []
    for text in given["shardings"]:
        try:
            parse_array(text)
            answers.append(True)
        except BadSharding:
            answers.append(False)
    return answers


@solves("sharding-pop1", formula="I J / (XY) elements; over XYZ devices")
def shard_and_total(given: Given) -> Answer:
    array = (given["sharding"], given["shape"], given["mesh"], given["bytes_per_elem"])
    return [shards.local_bytes(*array), shards.total_bytes(*array)]


@solves("sharding-q1", formula="product of the mesh axes that do not shard the array")
def copies(given: Given) -> Answer:
    return shards.replication(given["sharding"], given["mesh"])


@solves("sharding-four-cases", formula="derived for each mesh axis")
def four_cases(given: Given) -> Answer:
    return [_communication(parse_einsum(text)) for text in given["matmuls"]]


def _communication(einsum: Einsum) -> str:
    """The collectives of an einsum, as text.

    If a mesh axis shards a dim of each input, and the output has both dims, either input can be
    gathered; the text then says "one input".
    """
    kept_dims = einsum.output.names
    either_input = False
    for axis in axes_of(einsum):
        either_input |= all(array.where(axis) in kept_dims for array in einsum.inputs)
    texts = []
    for move in derive(einsum).moves:
        array = "one input" if either_input else move.before.name
        texts.append(f"{move.kind}({array})")
    return " ".join(texts) or "none"


@solves("sharding-ring-hops", formula="n - 1 one way, floor(n/2) both ways")
def hops(given: Given) -> Answer:
    return [[collective.hops(n, True, ways) for ways in (1, 2)] for n in given["N"]]


@solves("sharding-ag-independent-of-n", formula="T = V / W_ici")
def gather_times(given: Given) -> Answer:
    times = []
    for n in given["ring"]:
        span = ring(n, given["ici_bidi_bytes_per_s"])
        times.append(collective.time_s("all_gather", given["bytes"], span))
    return times


@solves("sharding-oneway-factor", formula="(n-1) / n")
def one_way(given: Given) -> Answer:
    return collective.received_bytes("all_gather", 1, column(given["n"]))


@solves("sharding-latency-threshold", formula="V/n < W1 T_min")
def latency_threshold(given: Given) -> Answer:
    return latency_bound_bytes(given["link_oneway_bytes_per_s"], given["hop_latency_s"])


@solves("sharding-ag-latency-formula", formula="T = max(T_min n/2, V / W_ici)")
def gather_with_latency(given: Given) -> Answer:
    span = ring(given["n"], given["ici_bidi_bytes_per_s"], given["hop_latency_s"])
    return collective.time_s("all_gather", column(given["bytes"]), span)


@solves("sharding-measured-95pct", formula="V / n")
def shard_size(given: Given) -> Answer:
    return shards.local_bytes("A[I_X]", (int(given["bytes"]),), {"X": given["n"]}, 1)


@solves("sharding-collective-costs", formula="T / T_AllGather on a ring in both directions")
def relative_costs(given: Given) -> Answer:
    span = ring(16, 1.0)
    costs = column([collective.price(kind, span).s_per_byte for kind in given["collectives"]])
    return costs / collective.price("all_gather", span).s_per_byte


@solves("sharding-adjoint-pairs", formula="AllGather <-> ReduceScatter, AllToAll <-> AllToAll")
def adjoints(given: Given) -> Answer:
    return [collective.ADJOINT[kind] for kind in given["forward"]]


@solves("sharding-nd-all-to-all", formula="T = V max(n_i) / (4 N W_ici)")
def all_to_all(given: Given) -> Answer:
    rings = []
    for index, n in enumerate(given["axes"]):
        rings.append(Ring(index, n, 1, True, given["ici_bidi_bytes_per_s"] / 2))
    return collective.time_s("all_to_all", given["bytes"], Span(rings=tuple(rings)))


@solves(
    "sharding-q2-1",
    "sharding-q2-2",
    formula="T = V / (n_ax W_ici), V summed over the joined shards",
)
def collective_time(given: Given) -> Answer:
    before = parse_array(given["sharding"])
    axes = tuple(given["axes"])
    axes_after = {}
    for dim in before.dims:
        axes_after[dim.name] = tuple(axis for axis in dim.axes if axis not in axes)
    move = Move(given["op"], axes, before, before.with_axes(axes_after))
    dims = dict(zip(before.names, given["shape"], strict=True))
    n_bytes = move.joined_bytes(dims, given["mesh"], given["bytes_per_elem"])
    tpu_slice = _torus_slice(given, ici__link=given["ici_bidi_bytes_per_s"] / 2)
    span = place(tpu_slice, given["mesh"])[0].span(axes)
    return collective.time_s(given["op"], n_bytes, span)


def _torus_slice(given: Given, **figures: float) -> System:
    """A slice with one torus axis per mesh axis, each with wraparound."""
    shape = tuple(given["mesh"].values())
    torus = Torus(shape=shape, wrapped=(True,) * len(shape))
    return System(name=given["chip"], chip=chip(given["chip"], **figures), topology=torus)


@solves("sharding-q3", formula="T = T_min n/2")
def latency_bound_gather(given: Given) -> Answer:
    span = place(_torus_slice(given, ici__hop=given["hop_latency_s"]), given["mesh"])[0].span(
        ("X",)
    )
    n_bytes = shards.local_bytes("A[D]", given["shape"], given["mesh"], given["bytes_per_elem"])
    hops = collective.hops(given["mesh"]["X"], span.rings[0].closed)
    return [hops, collective.time_s("all_gather", n_bytes, span)]


@solves("sharding-q4-strategy2-limit", formula="X < D / (2 alpha)")
def reduce_limit(given: Given) -> Answer:
    tpu = given_chip(given)
    return reduce_output_limit(given["D"], alpha(tpu))


@solves("sharding-q4-strategy1-limit", formula="2BDF/C > 2DF/W_ici leaves B > alpha")
def gather_limit(given: Given) -> Answer:
    """If weights are gathered: the dim on which T_math / T_comms depends, and its threshold."""
    tpu = given_chip(given)
    torus = Torus(shape=(16, 1, 1), wrapped=(True,) * 3)
    system = System(name="ring", chip=tpu, topology=torus)
    dims = {"B": 4096, "D": 4096, "F": 4096}
    ratio = _gathered_ratio(system, dims)
    doubled = {dim: _gathered_ratio(system, {**dims, dim: 2 * dims[dim]}) for dim in dims}
    decisive_dim = max(doubled, key=lambda dim: doubled[dim] / ratio)
    return [decisive_dim, dims[decisive_dim] / ratio]


def _gathered_ratio(system: System, dims: dict[str, int]) -> float:
    """T_math / T_comms of `A[B,D] . W[D_X,F]` if W is gathered."""
    options = shard("A[B,D] . W[D_X,F] -> C[B,F]", mesh={"X": 16}, on=system, sizes=dims)
    for option in (options.best, *options.others):
        if [step.collective for step in option.steps] == ["all_gather"]:
            return option.math_s / option.comms_s
    raise ValueError("no option gathers only the weights")


@solves("sharding-q9-ratio", formula="NM / NK = M / K")
def gather_or_scatter(given: Given) -> Answer:
    """Bytes to gather A before the product, divided by those to reduce-scatter the product."""
    einsum = parse_einsum("A[N,M_X] . B[M,K] -> C[N,K_X]")
    n_bytes = {}
    for program in choices(einsum):
        moves = [move for move in program.moves if move.kind != "slice"]
        if len(moves) == 1:
            n_bytes[moves[0].kind] = moves[0].joined_bytes(dict(given), {"X": 4}, 1)
    return n_bytes["all_gather"] / n_bytes["reduce_scatter"]


@solves("sharding-q10-unidirectional", formula="N^2 (1-1/D), N^2/2 (1-1/D), 1/2")
def one_way_scalars(given: Given) -> Answer:
    span = ring(given["D"], 2.0)  # a link moves one scalar per second
    gather_s = collective.time_s("all_gather", given["N"] ** 2, span, directions=1)
    all_to_all_s = collective.time_s("all_to_all", given["N"] ** 2, span, directions=1)
    return [gather_s, all_to_all_s, all_to_all_s / gather_s]
