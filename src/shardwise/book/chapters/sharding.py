"""Section 3, sharded matrices."""

from __future__ import annotations

from shardwise.book.givens import axis, chip, ring
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


@solves("sharding-local-shapes", by="each dim / product of its mesh axes")
def local_shapes(g: Given) -> Answer:
    return [shards.local_shape(text, g["shape"], g["mesh"]) for text in g["shardings"]]


@solves("sharding-code-shapes", by="each dim / product of its mesh axes")
def code_shapes(g: Given) -> Answer:
    return [shards.local_shape(g[f"{name}_spec"], g[name], g["mesh"]) for name in ("A", "B")]


@solves("sharding-invalid", by="a mesh axis shards at most one dim of an array")
def legal(g: Given) -> Answer:
    return [_is_legal(text) for text in g["shardings"]]


def _is_legal(text: str) -> bool:
    try:
        parse_array(text)
    except BadSharding:
        return False
    return True


@solves("sharding-pop1", by="I J / (XY); times XYZ devices")
def shard_and_total(g: Given) -> Answer:
    of = (g["sharding"], g["shape"], g["mesh"], g["bytes_per_elem"])
    return [shards.local_bytes(*of), shards.total_bytes(*of)]


@solves("sharding-q1", by="product of the mesh axes that do not shard it")
def copies(g: Given) -> Answer:
    return shards.replication(g["sharding"], g["mesh"])


@solves("sharding-four-cases", by="what the algebra derives for each axis")
def four_cases(g: Given) -> Answer:
    return [_communication(parse_einsum(text)) for text in g["matmuls"]]


def _communication(einsum: Einsum) -> str:
    """The derived collective; where one axis shards kept dims of both inputs, either may do it."""
    moves = derive(einsum).moves
    kept = einsum.output.names
    either = any(all(a.where(x) in kept for a in einsum.inputs) for x in axes_of(einsum))
    named = [f"{m.kind}({'one input' if either else m.before.name})" for m in moves]
    return " ".join(named) or "none"


@solves("sharding-ring-hops", by="n - 1 one way, floor(n/2) both ways")
def hops(g: Given) -> Answer:
    return [[collective.hops(n, True, 1), collective.hops(n, True, 2)] for n in g["N"]]


@solves("sharding-ag-independent-of-n", by="T = V / W_ici")
def gather_times(g: Given) -> Answer:
    spans = [ring(n, g["ici_bidi_bytes_per_s"]) for n in g["ring"]]
    return [collective.time_s("all_gather", g["bytes"], span) for span in spans]


@solves("sharding-oneway-factor", by="(n-1) / n")
def one_way(g: Given) -> Answer:
    return [collective.received_bytes("all_gather", 1, n) for n in g["n"]]


@solves("sharding-latency-threshold", by="V/n < W1 T_min")
def latency_threshold(g: Given) -> Answer:
    return latency_bound_bytes(g["link_oneway_bytes_per_s"], g["hop_latency_s"])


@solves("sharding-ag-latency-formula", by="T = max(T_min n/2, V / W_ici)")
def gather_with_latency(g: Given) -> Answer:
    span = ring(g["n"], g["ici_bidi_bytes_per_s"], g["hop_latency_s"])
    return [collective.time_s("all_gather", n_bytes, span) for n_bytes in g["bytes"]]


@solves("sharding-measured-95pct", by="V / n")
def shard_size(g: Given) -> Answer:
    return shards.local_bytes("A[I_X]", (int(g["bytes"]),), {"X": g["n"]}, 1)


@solves("sharding-collective-costs", by="T / T_AllGather on a ring in both directions")
def relative_costs(g: Given) -> Answer:
    span = ring(16, 1.0)
    gather = collective.price("all_gather", span).s_per_byte
    return [collective.price(kind, span).s_per_byte / gather for kind in g["collectives"]]


@solves("sharding-adjoint-pairs", by="AllGather <-> ReduceScatter, AllToAll <-> AllToAll")
def adjoints(g: Given) -> Answer:
    return [collective.ADJOINT[kind] for kind in g["forward"]]


@solves("sharding-nd-all-to-all", by="T = V max(n_i) / (4 N W_ici)")
def all_to_all(g: Given) -> Answer:
    link = g["ici_bidi_bytes_per_s"] / 2
    span = Span(rings=tuple(Ring(i, n, 1, True, link) for i, n in enumerate(g["axes"])))
    return collective.time_s("all_to_all", g["bytes"], span)


@solves(
    "sharding-q2-1", "sharding-q2-2", by="T = V / (n_ax W_ici), V summed over the joined shards"
)
def collective_time(g: Given) -> Answer:
    before = parse_array(g["sharding"])
    axes, mesh = tuple(g["axes"]), g["mesh"]
    left = {d.name: tuple(a for a in d.axes if a not in axes) for d in before.dims}
    move = Move(g["op"], axes, before, before.with_axes(left))
    named = dict(zip(before.names, g["shape"], strict=True))
    n_bytes = move.joined_bytes(named, mesh, g["bytes_per_elem"])
    span = place(_cube(g, ici__link=g["ici_bidi_bytes_per_s"] / 2), mesh)[0].span(axes)
    return collective.time_s(g["op"], n_bytes, span)


def _cube(g: Given, **figures: float) -> System:
    """The slice whose torus axes are the mesh axes, all of them rings."""
    shape = tuple(g["mesh"].values())
    torus = Torus(shape=shape, wrapped=(True,) * len(shape))
    return System(name=g["chip"], chip=chip(g["chip"], **figures), topology=torus)


@solves("sharding-q3", by="T = T_min n/2")
def latency_bound_gather(g: Given) -> Answer:
    span = place(_cube(g, ici__hop=g["hop_latency_s"]), g["mesh"])[0].span(("X",))
    n_bytes = shards.local_bytes("A[D]", g["shape"], g["mesh"], g["bytes_per_elem"])
    hops = collective.hops(g["mesh"]["X"], span.rings[0].closed)
    return [hops, collective.time_s("all_gather", n_bytes, span)]


@solves("sharding-q4-strategy2-limit", by="X < D / (2 alpha)")
def reduce_limit(g: Given) -> Answer:
    made = axis(g["chip"], g["peak_flops_per_s"], g["ici_bidi_bytes_per_s"])
    return reduce_output_limit(g["D"], alpha(made))


@solves("sharding-q4-strategy1-limit", by="2BDF/C > 2DF/W_ici leaves B > alpha")
def gather_limit(g: Given) -> Answer:
    """The dim whose growth changes T_math / T_comms when the weights are gathered, and where."""
    made = axis(g["chip"], g["peak_flops_per_s"], g["ici_bidi_bytes_per_s"])
    system = System(name="ring", chip=made, topology=Torus(shape=(16, 1, 1), wrapped=(True,) * 3))
    start = {"B": 4096, "D": 4096, "F": 4096}
    base = _gathered_ratio(system, start)
    grown = {d: _gathered_ratio(system, {**start, d: 2 * n}) / base for d, n in start.items()}
    dim = max(grown, key=lambda d: grown[d])
    return [dim, start[dim] / base]


def _gathered_ratio(system: System, dims: dict[str, int]) -> float:
    """T_math / T_comms of gathering W in `A[B,D] . W[D_X,F]`."""
    found = shard("A[B,D] . W[D_X,F] -> C[B,F]", mesh={"X": 16}, on=system, sizes=dims)
    ways = (found.best, *found.others)
    gathers = next(w for w in ways if [s.collective for s in w.steps] == ["all_gather"])
    return gathers.math_s / gathers.comms_s


@solves("sharding-q9-ratio", by="NM / NK = M / K")
def gather_or_scatter(g: Given) -> Answer:
    """An output that is wanted in shards: gather A first, or reduce-scatter the product."""
    einsum = parse_einsum("A[N,M_X] . B[M,K] -> C[N,K_X]")
    moved = {}
    for program in choices(einsum):
        moves = [m for m in program.moves if m.kind != "slice"]
        if len(moves) == 1:
            moved[moves[0].kind] = moves[0].joined_bytes(dict(g), {"X": 4}, 1)
    return moved["all_gather"] / moved["reduce_scatter"]


@solves("sharding-q10-unidirectional", by="N^2 (1-1/D), N^2/2 (1-1/D), 1/2")
def one_way_scalars(g: Given) -> Answer:
    one_per_s = ring(g["D"], 2.0)
    kinds = ("all_gather", "all_to_all")
    gather, exchange = (collective.time_s(k, g["N"] ** 2, one_per_s, directions=1) for k in kinds)
    return [gather, exchange, exchange / gather]
