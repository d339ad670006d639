"""What a step sends and keeps, by role."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pytest

from shardwise.models import ModelConfig, load
from shardwise.models.weights import layer_weights
from shardwise.ops.program import Matmul, Step, Transfer, training_step, weight_elements
from shardwise.ops.sharded import Move
from shardwise.strategy.rules import TRAIN, only

BATCH, SEQ = 16, 64
DENSE = ["llama3-70b", "llama2-7b", "gemma2-9b", "gpt2-xl", "gpt3-175b"]
ANY = [*DENSE, "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "palm-540b"]


def step(config: ModelConfig, *, remat: str = "none", **mesh: int) -> Step:
    return training_step(config, BATCH, SEQ, only(TRAIN, mesh), remat=remat)


def elements(matmul: Matmul, mesh: dict[str, int]) -> dict[str, float]:
    """What it reads and writes in HBM, by array."""
    return {array.name: n for array, n in matmul.arrays(mesh)}


def of_layers(found: Step) -> Iterator[Transfer]:
    return (t for t in found.transfers if not t.name.startswith(("embed", "unembed")))


@pytest.mark.parametrize("name", ANY)
def test_fsdp_gathers_each_weight_twice_and_reduces_its_gradient(name: str) -> None:
    config, mesh = load(name), {"fsdp": 4}
    sent: dict[tuple[str, str, str], float] = Counter()
    for transfer in of_layers(step(config, **mesh)):
        weight = transfer.move.before.base
        key = (transfer.phase, transfer.move.kind, weight)
        sent[key] += transfer.count * transfer.elements(mesh)
        assert transfer.role == "fsdp"
    expected: dict[tuple[str, str, str], float] = Counter()
    for group in config.groups:
        for weight in (w for w in layer_weights(config, group.layer) if w.is_matmul):
            expected["forward", "all_gather", weight.name] += group.count * weight.size
            expected["backward", "all_gather", weight.name] += group.count * weight.size
            expected["backward", "reduce_scatter", weight.name] += group.count * weight.size
    assert sent == expected


@pytest.mark.parametrize("name", ANY)
def test_full_remat_gathers_each_weight_twice(name: str) -> None:
    """What a layer gathers to be computed again serves its backward pass, which follows at once."""
    config, mesh = load(name), {"fsdp": 4}
    found = step(config, remat="full", **mesh)
    by_phase: dict[str, float] = Counter()
    for transfer in of_layers(found):
        if transfer.move.kind == "all_gather":
            by_phase[transfer.phase] += transfer.count * transfer.elements(mesh)
    again = by_phase["remat"] + by_phase["backward"]
    assert by_phase["forward"] == again > 0
    assert by_phase["backward"] < by_phase["remat"]  # the last products are not run again


@pytest.mark.parametrize("name", DENSE)
def test_tensor_gathers_and_scatters_the_residual_four_times_a_layer(name: str) -> None:
    config, mesh = load(name), {"tensor": 4}
    n: dict[tuple[str, str], int] = Counter()
    for transfer in of_layers(step(config, **mesh)):
        assert transfer.elements(mesh) == BATCH * SEQ * config.d_model
        assert transfer.role == "tensor"
        n[transfer.phase, transfer.move.kind] += transfer.count
    layers = 2 * config.n_layers
    assert n == {
        (phase, kind): layers
        for phase in ("forward", "backward")
        for kind in ("all_gather", "reduce_scatter")
    }


def test_parallel_blocks_share_one_gather_and_one_reduction() -> None:
    config = load("palm-8b")
    assert config.main_layer.parallel
    n = Counter()
    for transfer in of_layers(step(config, tensor=4)):
        if transfer.move.axes == ("tensor",) and transfer.move.before.name in (
            "x",
            "y",
            "dx",
            "dy",
        ):
            n[transfer.phase, transfer.move.kind] += transfer.count
    assert set(n.values()) == {config.n_layers}


@pytest.mark.parametrize("name", ANY)
def test_data_reduces_every_gradient_once(name: str) -> None:
    config, mesh = load(name), {"data": 4}
    found = list(of_layers(step(config, **mesh)))
    assert {(t.phase, t.move.kind, t.role) for t in found} == {("backward", "all_reduce", "data")}
    expected = sum(
        group.count * weight.size
        for group in config.groups
        for weight in layer_weights(config, group.layer)
        if weight.is_matmul
    )
    assert sum(t.count * t.elements(mesh) for t in found) == expected


def test_context_gathers_keys_and_values() -> None:
    config, mesh = load("llama3-70b"), {"context": 4}
    found = [t for t in of_layers(step(config, **mesh)) if t.move.before.name in ("k", "v")]
    assert {(t.phase, t.move.kind) for t in found} == {
        ("forward", "all_gather"), ("backward", "all_gather"),
    }  # fmt: skip
    size = BATCH * SEQ * config.n_kv_heads * config.d_head
    assert all(t.elements(mesh) == size and t.count == config.n_layers for t in found)
    back = [t for t in of_layers(step(config, **mesh)) if t.move.before.name in ("dk", "dv")]
    assert {t.move.kind for t in back} == {"reduce_scatter"}
    assert all(t.elements(mesh) == size for t in back)


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("remat", ["none", "full"])
def test_an_axis_of_one_chip_changes_nothing(name: str, remat: str) -> None:
    """The table with all rows, and with the rows that a mesh uses, give the same numbers."""
    config = load(name)
    mesh = {"data": 2, "fsdp": 4, "tensor": 2, "context": 1, "expert": 1, "pipe": 1}
    used, whole = step(config, remat=remat, **mesh), training_step(
        config, BATCH, SEQ, TRAIN, remat=remat
    )  # fmt: skip
    assert [m.name for m in used.matmuls] == [m.name for m in whole.matmuls]
    for a, b in zip(used.matmuls, whole.matmuls, strict=True):
        assert a.flops(mesh) == b.flops(mesh)
        assert elements(a, mesh) == elements(b, mesh)
    for a, b in zip(used.saved, whole.saved, strict=True):
        assert a.elements(mesh) == b.elements(mesh)

    def sent(found: Step) -> dict[tuple[str, str, str], float]:
        total: dict[tuple[str, str, str], float] = Counter()
        for t in found.transfers:
            n = math.prod(mesh[a] for a in t.move.axes)
            if n > 1:
                total[t.phase, t.move.kind, t.move.before.name] += t.count * t.elements(mesh)
        return total

    assert sent(used) == sent(whole)


def test_what_lies_between_blocks_is_split_over_tensor_too() -> None:
    config = load("llama3-70b")
    found = step(config, tensor=4)
    kept = {k.array.name: k for k in found.saved}
    whole = BATCH * SEQ * config.d_model * config.n_layers
    assert kept["layer_input"].elements({"tensor": 4}) == whole / 4
    assert kept["attention_input"].elements({"tensor": 4}) == whole
    assert kept["up"].elements({"tensor": 4}) == whole / config.d_model * config.d_ff / 4
    assert [k.elements({"tensor": 4}) for k in found.layer_inputs] == [whole / 4]
    assert found.logits.elements({"tensor": 4}) == BATCH * SEQ * config.vocab / 4


def test_scores_never_leave_the_chip() -> None:
    for matmul in step(load("llama3-8b")).matmuls:
        assert not {*elements(matmul, {})} & {"s", "ds", "onehot"}


def test_keys_are_read_as_the_heads_that_are_held() -> None:
    config = load("llama3-70b")
    scores = next(m for m in step(config).matmuls if m.name == "attn.scores")
    read = elements(scores, {})
    assert read["k"] == config.n_layers * BATCH * SEQ * 8 * 128
    assert read["q"] == config.n_layers * BATCH * SEQ * 64 * 128


def test_the_role_of_a_move_over_several_axes() -> None:
    found = step(load("llama3-8b"), fsdp=2, context=2)
    gathers = [t for t in found.transfers if t.move.axes == ("fsdp", "context")]
    assert gathers
    assert {t.role for t in gathers} == {"fsdp"}


def test_a_weight_of_one_chip() -> None:
    mesh = {"fsdp": 4, "tensor": 8, "context": 2}
    assert weight_elements(("D", "F"), (8192, 28672), TRAIN, mesh) == 8192 * 28672 / 64
    assert weight_elements(("D", "K", "H"), (8192, 3, 128), TRAIN, {"tensor": 2}) == 8192 * 2 * 128
    assert weight_elements(("H",), (128,), TRAIN, mesh) == 128


def test_a_step_holds_no_slice_and_no_move_twice() -> None:
    found = step(load("llama3-70b"), data=2, fsdp=2, tensor=2, context=2)
    assert all(isinstance(t.move, Move) and t.move.kind != "slice" for t in found.transfers)
    named = [(t.phase, str(t.move), t.name.split(".")[0]) for t in found.transfers]
    assert len(named) == len(set(named))


def test_experts_read_and_write_a_copy_of_each_token_for_every_expert() -> None:
    config = load("mixtral-8x7b")
    (moe,) = {layer.ffn for layer in (group.layer for group in config.groups)}
    tokens = BATCH * SEQ * config.d_model
    hidden = BATCH * SEQ * moe.experts_per_token * moe.d_ff
    by_name = {m.name: elements(m, {}) for m in step(config).matmuls if m.phase == "forward"}
    n = config.n_layers
    weights = n * moe.n_experts * config.d_model * moe.d_ff
    copies = n * moe.experts_per_token * tokens
    assert by_name["moe.up"] == {"x": copies, "w_up": weights, "up": n * hidden}
    assert by_name["moe.down"] == {"h": n * hidden, "w_down": weights, "y": copies}
    assert by_name["moe.router"]["x"] == n * tokens
