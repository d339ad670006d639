"""The planned collectives of small models against counts and bytes written down by hand."""

from __future__ import annotations

import dataclasses
import functools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.plan.collectives import PlannedCollective, planned_collectives
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.training import Plan
from shardwise.plan.training import build
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER, REMAT_POLICIES

L, D, F, V, N, K, H = 4, 4096, 14336, 128256, 32, 8, 128
SEQ, W, G = 2048, 2, 4  # bytes of a weight and an activation; of a gradient on its way
ATTENTION = D * (2 * N + 2 * K) * H
MATRICES = L * (ATTENTION + 3 * D * F)
NORMS = (2 * L + 1) * D
ENDS = 2 * V * D
EXPERTS, CHOSEN, LM, VM = 8, 2, 2, 32000  # of a Mixtral of two layers
ROUTED = LM * EXPERTS * 3 * D * F

Found = dict[tuple[str, str], PlannedCollective]


@functools.cache
def plan(name: str, chips: int, batch: int, layout: Layout) -> Plan:
    job = sw.Train(batch=batch, seq=SEQ, reduce="fp32")
    return build.evaluate(sw.model(name), sw.hardware(f"h100:{chips}"), job, layout)


def planned(layout: Layout, name: str = f"llama3-8b,n_layers={L}") -> Found:
    chips = layout.mesh.n_chips
    found = planned_collectives(plan(name, chips, layout.global_batch, layout))
    return {(one.role, one.kind): one for one in found}


def totals(found: Found) -> dict[tuple[str, str], tuple[int, float]]:
    return {key: (one.n, one.joined_bytes) for key, one in found.items()}


def gathered(n_bytes: float, n: int) -> float:
    """What a chip takes in of an array that it has an n-th of."""
    return n_bytes * (n - 1) / n


def test_data_parallelism_sums_every_gradient_once() -> None:
    found = planned(Layout(mesh=Mesh(data=8), n_microbatches=2))
    # Seven matrices, two norms of a layer, all layers in one array; two ends and a norm.
    total = (MATRICES + NORMS + ENDS) * G
    assert totals(found) == {("data", "all_reduce"): (12, total)}
    one = found["data", "all_reduce"]
    assert one.axes == ("data",)
    assert one.received_bytes == pytest.approx(2 * gathered(total, 8))
    assert one.names == ("gradients.matrices", "gradients.ends", "gradients.vectors")


@pytest.mark.parametrize("zero", [1, 2])
def test_zero_scatters_gradients_and_gathers_weights(zero: int) -> None:
    """ZeRO-2 has no room for whole gradients from one microbatch to the next."""
    found = planned(Layout(mesh=Mesh(data=8), zero=zero, n_microbatches=4))
    times = 4 if zero == 2 else 1
    every = MATRICES + ENDS
    assert totals(found) == {
        ("data", "reduce_scatter"): (9 * times, times * every * G),
        ("data", "all_gather"): (9, every * W),
        ("data", "all_reduce"): (3, NORMS * G),
    }
    assert found["data", "all_gather"].received_bytes == pytest.approx(gathered(every * W, 8))


def test_zero_3_gathers_twice_and_scatters_once_a_microbatch() -> None:
    found = planned(Layout(mesh=Mesh(fsdp=8), zero=3, n_microbatches=2))
    # The table of a lookup is not read in the backward pass, and that of the unembedding is still
    # at hand. Norms are whole on every chip.
    n_arrays = 7 * L
    assert totals(found) == {
        ("fsdp", "all_gather"): (2 * (2 * n_arrays + 2), 2 * (2 * MATRICES + ENDS) * W),
        ("fsdp", "reduce_scatter"): (2 * (n_arrays + 2), 2 * (MATRICES + ENDS) * G),
        ("data", "all_reduce"): (3, NORMS * G),
    }
    norms = found["data", "all_reduce"]
    assert norms.axes == ("fsdp",)
    assert norms.received_bytes == pytest.approx(2 * gathered(NORMS * G, 8))


def test_copies_of_shards_are_summed_over_data_once_a_step() -> None:
    found = planned(Layout(mesh=Mesh(data=2, fsdp=4), zero=3, n_microbatches=2))
    one = found["data", "all_reduce"]
    assert one.joined_bytes == ((MATRICES + ENDS) / 4 + NORMS) * G
    assert one.axes == ("data", "fsdp")
    assert found["fsdp", "reduce_scatter"].axes == ("fsdp",)


@pytest.mark.parametrize("remat", ["none", "norms", "full"])
def test_tensor_parallelism_with_a_split_sequence(remat: str) -> None:
    layout = Layout(mesh=Mesh(tensor=4, data=2), sequence_parallel=True, micro_batch=2,
                    recomputed=REMAT_POLICIES[remat])  # fmt: skip
    found = planned(layout)
    residual = 2 * SEQ * D * W
    # Two blocks a layer, forward and backward, and the unembedding; the lookup ends in a sum.
    gathers, scatters = 4 * L + 2, 4 * L + 2
    if remat == "norms":
        gathers += 2 * L
    if remat == "full":  # the sum that ends a layer is read by nothing
        gathers, scatters = gathers + 2 * L, scatters + L
    assert totals(found) == {
        ("tensor", "all_gather"): (gathers, gathers * residual),
        ("tensor", "reduce_scatter"): (scatters, scatters * residual),
        ("data", "all_reduce"): (12, ((MATRICES + ENDS) / 4 + NORMS) * G),
    }


def test_remat_of_some_layers_gathers_again_in_those() -> None:
    layout = Layout(
        mesh=Mesh(tensor=8), sequence_parallel=True, recomputed=(LAYER,), remat_layers=1
    )
    found = planned(layout)
    assert found["tensor", "all_gather"].n == 4 * L + 2 + 2
    assert found["tensor", "reduce_scatter"].n == 4 * L + 2 + 1


@pytest.mark.parametrize("remat", ["none", "full"])
def test_keys_and_values_of_other_chips(remat: str) -> None:
    kind = functools.partial(Layout, mesh=Mesh(context=4, data=2), recomputed=REMAT_POLICIES[remat])
    kv = SEQ * K * H * W  # keys, or values, of one sequence
    again = remat == "full"
    data = ("data", "all_reduce")
    found = totals(planned(kind(context_kind="gather")))
    found.pop(data)
    assert found == {  # what remat gathers stays for the backward pass
        ("context", "all_gather"): (4 * L, 4 * L * kv),
        ("context", "reduce_scatter"): (2 * L, 2 * L * kv),
    }
    found = totals(planned(kind(context_kind="ring")))
    found.pop(data)
    n = 3 * (6 + 2 * again) * L
    assert found == {("context", "permute"): (n, n * kv / 4)}
    found = totals(planned(kind(context_kind="ulysses")))
    found.pop(data)
    heads = SEQ * (2 * N + 2 * K) * H * W
    times = (2 + again) * L
    assert found == {("context", "all_to_all"): (4 * times, times * heads)}


def test_heads_that_several_chips_receive_are_sent_as_often() -> None:
    found = planned(Layout(mesh=Mesh(context=16), context_kind="ulysses"))
    heads = SEQ * (2 * N + 2 * 16) * H * W  # of 8 keys and values
    assert found["context", "all_to_all"].joined_bytes == 2 * L * heads


def test_weights_are_copied_over_context_too() -> None:
    found = planned(Layout(mesh=Mesh(context=4, data=2)))
    assert found["data", "all_reduce"].axes == ("data", "context")
    sharded = planned(Layout(mesh=Mesh(context=4, fsdp=2), zero=3))
    assert sharded["fsdp", "all_gather"].axes == ("fsdp", "context")


MIXTRAL = f"mixtral-8x7b,n_layers={LM}"
TOKENS = SEQ * D * W  # the residual of one sequence


@pytest.mark.parametrize("remat", ["none", "full"])
def test_tokens_go_to_their_experts_and_back(remat: str) -> None:
    layout = Layout(
        mesh=Mesh(expert=4, data=2), zero=1, n_microbatches=2, recomputed=REMAT_POLICIES[remat]
    )
    found = planned(layout, MIXTRAL)
    n = (5 if remat == "full" else 4) * LM * 2
    one = found["expert", "all_to_all"]
    assert (one.n, one.joined_bytes) == (n, n * CHOSEN * TOKENS * 4)
    # Three quarters of what a chip sends goes to others.
    assert one.received_bytes == pytest.approx(n * CHOSEN * TOKENS * 3 / 4)
    dense = LM * (ATTENTION + EXPERTS * D) + 2 * VM * D
    scattered = found["data", "reduce_scatter"]
    assert scattered.joined_bytes == (dense + ROUTED / 4) * G
    # The sums of experts have a quarter of the copies.
    received = gathered(dense * G, 8) + gathered(ROUTED / 4 * G, 2)
    assert scattered.received_bytes == pytest.approx(received)


def test_zero_3_shards_over_expert_what_is_no_experts() -> None:
    found = planned(Layout(mesh=Mesh(expert=4, fsdp=2), zero=3), MIXTRAL)
    assert found["data", "all_reduce"].joined_bytes == (2 * LM + 1) * D * G
    gathers = found["fsdp", "all_gather"]
    dense = LM * (ATTENTION + EXPERTS * D)
    joined = (2 * dense + 2 * VM * D + 2 * ROUTED / 4) * W
    assert gathers.joined_bytes == pytest.approx(joined)
    received = gathered((2 * dense + 2 * VM * D) * W, 8) + gathered(2 * ROUTED / 4 * W, 2)
    assert gathers.received_bytes == pytest.approx(received)


@pytest.mark.parametrize("experts_split", [None, 1])
def test_experts_beside_tensor_parallelism(experts_split: int | None) -> None:
    """Split experts gather k copies of a token; whole ones are reached over both axes."""
    layout = Layout(mesh=Mesh(expert=2, tensor=4), zero=1, sequence_parallel=True,
                    expert_tensor=experts_split)  # fmt: skip
    found = planned(layout, MIXTRAL)
    sent = found["expert", "all_to_all"]
    n = 4 * LM
    ways = 2 if experts_split is None else 8
    assert (sent.n, sent.joined_bytes) == (n, n * CHOSEN * TOKENS / 4 * ways)
    assert sent.axes == (("expert",) if experts_split is None else ("tensor", "expert"))
    attention = (2 * LM + 2) * TOKENS  # and the ends, for each of both kinds
    experts = 2 * LM * CHOSEN * TOKENS if experts_split is None else 0
    for kind in ("all_gather", "reduce_scatter"):
        assert found["tensor", kind].joined_bytes == attention + experts


def test_split_experts_on_one_rank_of_expert_share_a_gather() -> None:
    layout = Layout(mesh=Mesh(data=2, tensor=4), zero=1, sequence_parallel=True)
    found = planned(layout, MIXTRAL)
    assert ("expert", "all_to_all") not in found
    assert found["tensor", "all_gather"].joined_bytes == (4 * LM + 2) * TOKENS


def test_shared_experts_gather_the_residual_themselves() -> None:
    name = "qwen1.5-moe-a2.7b,n_layers=2"
    model = sw.model(name)
    tokens = SEQ * model.d_model * W
    layout = Layout(mesh=Mesh(expert=2, tensor=4), zero=1, sequence_parallel=True)
    found = planned(layout, name)["tensor", "all_gather"]
    copies = 2 * 2 * model.experts_per_token * tokens
    assert found.joined_bytes == (4 * 2 + 2) * tokens + copies


def test_whole_experts_and_a_whole_residual() -> None:
    """Each chip of tensor sends its part of the tokens, and joins what comes back."""
    layout = Layout(mesh=Mesh(expert=2, tensor=4), zero=1, expert_tensor=1)
    found = planned(layout, MIXTRAL)
    assert found["expert", "all_to_all"].joined_bytes == 4 * LM * CHOSEN * TOKENS / 4 * 8
    assert found["tensor", "all_gather"].joined_bytes == 2 * LM * TOKENS
    assert found["tensor", "all_reduce"].n == 2 * LM + 2  # attention, lookup, unembedding


def test_stages_send_every_microbatch_both_ways() -> None:
    layout = Layout(mesh=Mesh(data=4, pipe=2), zero=1, n_microbatches=4, schedule="1f1b")
    found = planned(layout)
    assert found["pipe", "permute"].n == 8
    assert found["pipe", "permute"].joined_bytes == 8 * SEQ * D * W
    # Half of the layers and one end.
    held = MATRICES / 2 + V * D
    assert found["data", "reduce_scatter"].joined_bytes == held * G
    split = Layout(mesh=Mesh(tensor=2, data=2, pipe=2), zero=1, n_microbatches=4, schedule="1f1b")
    parts = planned(split)
    assert parts["pipe", "permute"].joined_bytes == 8 * SEQ * D * W / 2
    assert parts["pipe", "all_gather"].joined_bytes == 8 * SEQ * D * W
    assert parts["pipe", "all_gather"].axes == ("tensor",)


def test_a_tied_embedding_lies_on_both_ends() -> None:
    name = "llama3.2-1b,n_layers=4"
    layout = Layout(mesh=Mesh(data=4, pipe=2), zero=1, n_microbatches=4, schedule="1f1b")
    (end,) = (op for op in plan(name, 8, 16, layout).operations if op.name == "gradients.ends")
    assert end.joined_bytes == V * 2048 * G


LAYOUTS = st.sampled_from([
    Layout(mesh=Mesh(data=8)),
    Layout(mesh=Mesh(data=4, tensor=2), zero=1, sequence_parallel=True),
    Layout(mesh=Mesh(data=2, context=4), zero=1, context_kind="ring"),
    Layout(mesh=Mesh(data=2, fsdp=4), zero=3, recomputed=(LAYER,)),
    Layout(mesh=Mesh(data=2, expert=2, tensor=2), zero=1, sequence_parallel=True),
    Layout(mesh=Mesh(data=2, tensor=2, pipe=2), zero=0, schedule="gpipe"),
])  # fmt: skip


@settings(max_examples=30)
@given(LAYOUTS, st.integers(1, 6), st.integers(1, 3))
def test_microbatches_multiply_all_but_sums_over_data(layout: Layout, m: int, b: int) -> None:
    """The bytes of a batch are the same however it is cut, weights gathered more often apart."""
    one = planned(dataclasses.replace(layout, n_microbatches=1, micro_batch=b), MIXTRAL)
    many = planned(dataclasses.replace(layout, n_microbatches=m, micro_batch=b), MIXTRAL)
    assert {*one} == {*many}
    for key, found in many.items():
        times = 1 if found.role == "data" else m
        assert found.joined_bytes == pytest.approx(times * one[key].joined_bytes)
        assert found.n == times * one[key].n
        assert 0 < found.received_bytes <= 2 * found.joined_bytes


def test_old_plans_have_no_joined_bytes() -> None:
    made = plan("llama3-8b,n_layers=4", 8, 16, Layout(mesh=Mesh(data=8), n_microbatches=2))
    raw = msgspec.json.decode(encode(made))
    for op in raw["operations"]:
        del op["joined_bytes"], op["axes"]
    old = decode(msgspec.json.encode(raw))
    assert isinstance(old, Plan)
    assert planned_collectives(old) == ()
    assert planned_collectives(decode(encode(made))) == planned_collectives(made)


def test_the_steps_of_a_deployment() -> None:
    job = sw.Serve(prompt=1024, output=128, batch=16)
    made = sw.plan(sw.model("llama3-8b,n_layers=4"), sw.hardware("h100:8"), job, {"tensor": 8})
    (one,) = planned_collectives(made, "decode")
    assert (one.role, one.kind, one.axes) == ("tensor", "all_reduce", ("tensor",))
    # The sum behind each block, and behind the lookup.
    assert one.n == 2 * L + 1
    assert one.joined_bytes == (2 * L + 1) * 16 * D * W
    with pytest.raises(BadInput, match='steps decode and prefill, not "None"'):
        planned_collectives(made)
    train = plan("llama3-8b,n_layers=4", 8, 16, Layout(mesh=Mesh(data=8), n_microbatches=2))
    with pytest.raises(BadInput, match='a single step; step "decode"'):
        planned_collectives(train, "decode")
