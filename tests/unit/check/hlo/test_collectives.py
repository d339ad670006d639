"""Collectives: each once, in every form, with the bytes that the program was written with."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest

from shardwise.check.hlo.collectives import collectives
from shardwise.check.hlo.text import parse
from tests.unit.check.hlo.kept import FOLDER, NAMES, mesh, program, wrap
from tests.unit.check.hlo.make import MESH, PROGRAMS, B, D, E, F, H, L, N, T, V

TRAIN = [n for n in NAMES if n.startswith(("train", "slices"))]
BF16 = 2
XY = {"X": 2, "Y": 2}


def summed(name):
    """(kind, axes) -> (how often, bytes of all), but for the sums of single numbers."""
    count, n_bytes = Counter(), Counter()
    for one in collectives(program(name), mesh(name)):
        key = one.kind, one.axes
        count[key] += one.n_runs * len(one.array_bytes)
        n_bytes[key] += one.total_bytes
    return {key: (count[key], n_bytes[key]) for key in count}


@pytest.mark.parametrize("name", TRAIN)
def test_a_step_has_the_collectives_that_it_was_written_with(name):
    """Weights are gathered for the forward and again for the backward pass, but the head, whose
    gather stays; residual streams around each of two blocks a layer."""
    sizes = mesh(name)
    element = 4 if name == "train_cpu" else BF16  # XLA:CPU widens bf16
    layer = 2 * (D * N * H + D * F) // sizes["tensor"]
    head = D * V // sizes["tensor"]
    batch = B // sizes["fsdp"] // sizes.get("data", 1)
    stream = batch * T * D
    found = summed(name)
    gathers, gathered = found["all_gather", ("fsdp",)]
    assert gathers == 2 * 4 * L + 1
    assert found["reduce_scatter", ("fsdp",)] == (4 * L + 1, (layer * L + head) * BF16 * cpu(name))
    assert gathered == (2 * layer * L + head) * element
    # Forward: two gathers a layer and one for the head. Backward: the same again, and one for
    # each scattered output. The remat runs no scatter whose result nothing reads.
    assert found["all_gather", ("tensor",)] == (6 * L + 1, (6 * L + 1) * stream * element)
    scatters = 2 * L + L + 2 * L + 1
    assert found["reduce_scatter", ("tensor",)] == (scatters, scatters * stream * element)
    assert found["all_reduce", ("tensor",)] == (2, 2 * batch * T * 4)


def cpu(name):
    return 2 if name == "train_cpu" else 1


def test_forms():
    forms = {
        name: {c.form for c in collectives(program(name), mesh(name)) if c.joined_bytes > 4096}
        for name in TRAIN
    }
    assert forms["train_v5e"] == {"fused", "sync"}
    assert forms["train_tpu7x"] == {"offloaded", "sync"}
    assert forms["train_gpu"] == {"async", "sync"}
    assert forms["train_cpu"] == {"sync"}


def test_a_chain_is_one_collective_beside_the_products_that_hide_it():
    chains = [c for c in collectives(program("train_v5e"), MESH) if c.form == "fused"]
    assert len(chains) == len({c.instruction for c in chains}) == 8
    for one in chains:
        block = list(program("train_v5e").computations[one.computation].instructions)
        assert block.index(one.instruction) < block.index(one.done)
        assert one.overlapped


def test_sums_between_slices():
    """Each weight's gradient once over the network between slices, and the loss."""
    between = [
        c for c in collectives(program("slices_v5e"), mesh("slices_v5e")) if c.between_slices
    ]
    assert {(c.kind, c.axes, c.group_size) for c in between} == {("all_reduce", ("data",), 2)}
    weights = (2 * L * (D * N * H + D * F) + D * V) // 4 * BF16
    # The loss is padded to one row of lanes.
    assert sum(c.total_bytes for c in between) == weights + 128 * 4
    assert len(between) == 6
    assert all(c.done for c in between)


@pytest.mark.parametrize(("kind", "shards"), [("ALL_GATHER", 2), ("REDUCE_SCATTER", 1)])
def test_a_gather_between_slices_sends_a_shard(kind, shards):
    """The arrays that two slices sum would be shards in a gather, and the whole in a scatter."""
    text = gzip.decompress((FOLDER / "slices_v5e.hlo.gz").read_bytes()).decode()
    other = parse(text.replace('"ALL_REDUCE"', f'"{kind}"'))
    found, summed = (
        [c for c in collectives(m, mesh("slices_v5e")) if c.between_slices]
        for m in (other, program("slices_v5e"))
    )
    assert {c.kind for c in found} == {kind.lower()}
    assert [c.joined_bytes for c in found] == [shards * c.joined_bytes for c in summed]


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("moe")])
def test_tokens_to_experts_and_back(name):
    assert summed(name) == {("all_to_all", ("expert",)): (2, 2 * E * B * T * D * BF16)}


@pytest.mark.parametrize("name", ["ring_cpu", "ring_v5e"])
def test_blocks_round_a_ring(name):
    (one,) = collectives(program(name), mesh(name))
    element = 4 if name == "ring_cpu" else BF16  # a TPU sends what its product reads
    assert (one.kind, one.axes, one.n_runs) == ("permute", ("context",), 4)
    assert one.joined_bytes == one.received_bytes == B * T // 4 * D * element


@pytest.mark.parametrize("name", NAMES)
def test_received_bytes_are_those_of_the_ring(name):
    for one in collectives(program(name), mesh(name)):
        n = one.group_size
        share = {"permute": n / (n - 1), "all_to_all": 1 / n, "all_reduce": 2}.get(one.kind, 1)
        assert one.received_bytes == round(one.joined_bytes * (n - 1) / n * share)


def test_every_program_of_the_list_is_kept():
    assert set(NAMES) == set(PROGRAMS)


SUM = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

%inner (p0: f32[8,4], p1: s32[]) -> f32[ROWS,4] {
  %p0 = f32[8,4]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %copy.1 = f32[8,4]{0,1} copy(%p0)
  ROOT %cut = f32[ROWS,4]{0,1} dynamic-slice(%copy.1, %p1, %p1), dynamic_slice_sizes={4,4}
}

%both (p2: f32[8,4], p3: s32[]) -> f32[4,4] {
  %p2 = f32[8,4]{1,0} parameter(0)
  %p3 = s32[] parameter(1)
  %sum.2 = f32[8,4]{1,0} all-reduce(%p2), replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %cut.2 = f32[4,4]{1,0} dynamic-slice(%sum.2, %p3, %p3), dynamic_slice_sizes={4,4}
}

%padded (p5: f32[8,4], p6: f32[SHARD,4], p7: s32[]) -> f32[8,4] {
  %p5 = f32[8,4]{1,0} parameter(0)
  %p6 = f32[SHARD,4]{1,0} parameter(1)
  %p7 = s32[] parameter(2)
  ROOT %put = f32[8,4]{1,0} dynamic-update-slice(%p5, %p6, %p7, %p7)
}

%wrapped (p4: f32[4,4]) -> f32[8,4] {
  %p4 = f32[4,4]{1,0} parameter(0)
  ROOT %g = f32[8,4]{1,0} all-gather(%p4), replica_groups={{0,2},{1,3}}, dimensions={0}
}
"""
HEAD = """
  %a = f32[8,4]{1,0} parameter(0)
  %i = s32[] constant(0)
"""
REDUCED = (
    HEAD + "  %sum = f32[8,4]{1,0} all-reduce(%a), replica_groups={{0,1},{2,3}}, to_apply=%add\n"
)


def only(body, rows=4):
    computations = SUM.replace("ROWS", str(rows)).replace("SHARD", str(rows))
    (one,) = collectives(wrap(body, computations), XY)
    return one


@pytest.mark.parametrize(
    ("use", "rows", "kind"),
    [
        ("fusion(%sum, %i), kind=kLoop, calls=%inner", 4, "reduce_scatter"),
        ("fusion(%sum, %i), kind=kLoop, calls=%inner", 2, "all_reduce"),
        ("fusion(%sum, %sum), kind=kLoop, calls=%inner", 4, "all_reduce"),
        ("add(%sum, %i)", 4, "all_reduce"),
    ],
)
def test_only_a_sum_of_which_a_shard_is_read_is_a_reduce_scatter(use, rows, kind):
    one = only(f"{REDUCED}  ROOT %used = f32[{rows},4]{{1,0}} {use}", rows)
    assert (one.kind, one.axes, one.joined_bytes) == (kind, ("Y",), 128)


@pytest.mark.parametrize(
    ("target", "rows", "kind"),
    [
        ("%zeros", 4, "all_gather"),
        ("%zeros", 2, "all_reduce"),  # a part of a shard
        ("%a", 4, "all_reduce"),  # other summands than zeros
    ],
)
def test_a_sum_of_shards_in_zeros_is_an_all_gather(target, rows, kind):
    """Each device receives what an all-reduce sends: twice the bytes of a gather."""
    one = only(
        f"""{HEAD}  %zero = f32[] constant(0)
  %zeros = f32[8,4]{{1,0}} broadcast(%zero), dimensions={{}}
  %shard = f32[{rows},4]{{1,0}} parameter(1)
  %put = f32[8,4]{{1,0}} fusion({target}, %shard, %i), kind=kLoop, calls=%padded
  %moved = f32[8,4]{{0,1}} copy(%put)
  ROOT %sum = f32[8,4]{{0,1}} all-reduce(%moved), replica_groups={{{{0,1}},{{2,3}}}}, to_apply=%add
""",
        rows,
    )
    assert (one.kind, one.axes, one.joined_bytes, one.received_bytes) == (kind, ("Y",), 128, 128)


def test_a_fusion_of_sum_and_slice_is_a_reduce_scatter():
    one = only(f"{HEAD}  ROOT %f = f32[4,4]{{1,0}} fusion(%a, %i), kind=kCustom, calls=%both")
    assert (one.kind, one.form, one.instruction) == ("reduce_scatter", "sync", "f")
    assert (one.joined_bytes, one.received_bytes) == (128, 64)


def test_a_wrapped_pair_counts_what_runs_beside_it():
    body = """  %a = f32[4,4]{1,0} parameter(0)
  %s = ((f32[4,4]{1,0}), f32[8,4]{1,0}, u32[]) async-start(%a), calls=%wrapped
  %work = f32[4,4]{1,0} add(%a, %a)
  %name = f32[16]{0} bitcast(%work)
  %d = f32[8,4]{1,0} async-done(%s)
  ROOT %r = f32[8,4]{1,0} add(%d, %d)"""
    one = only(body)
    assert (one.kind, one.form, one.axes) == ("all_gather", "async", ("X",))
    assert (one.instruction, one.done, one.overlapped) == ("s", "d", ("work",))
    assert one.joined_bytes == 128


def test_combined_gathers_keep_their_parts():
    body = """  %a = f32[4,4]{1,0} parameter(0)
  %b = bf16[4,8]{1,0} parameter(1)
  %s = ((f32[4,4], bf16[4,8]), (f32[8,4], bf16[8,8])) all-gather-start(%a, %b), REST
  %d = (f32[8,4]{1,0}, bf16[8,8]{1,0}) all-gather-done(%s)
  ROOT %r = f32[8,4]{1,0} get-tuple-element(%d), index=0"""
    one = only(body.replace("REST", "replica_groups=[2,2]<=[4], dimensions={0}"))
    assert (one.array_bytes, one.axes, one.form) == ((128, 128), ("Y",), "async")


def test_a_ragged_exchange_counts_whole_buffers():
    body = """  %a = f32[8,4]{1,0} parameter(0)
  %o = s64[2]{0} parameter(1)
  ROOT %r = f32[8,4]{1,0} ragged-all-to-all(%a, %a, %o, %o, %o, %o), replica_groups={{0,1},{2,3}}"""
    one = only(body)
    assert (one.kind, one.group_size, one.joined_bytes) == ("all_to_all", 2, 256)


def test_groups_of_no_axes_have_no_axes_but_a_size():
    one = only(
        REDUCED.replace("{{0,1},{2,3}}", "{{0,3},{1,2}}") + "  ROOT %r = f32[8,4] copy(%sum)"
    )
    assert (one.axes, one.group_size) == ((), 2)
