"""Arrays of a program by the names that a plan has for them."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.check.array_names import (
    ArrayNames,
    argument_category,
    describe_unplanned,
    merge_equal,
    user_scope,
)
from shardwise.check.hlo.memory import LiveArray
from shardwise.check.hlo.shape import parse_shapes
from shardwise.plan.training.rebuild import rebuild
from tests.unit.check.test_comparison import MODEL


@pytest.fixture(scope="module")
def words() -> ArrayNames:
    """2 layers, D 512, F 1024, V 2048; 8 sequences of 64 over fsdp 2, the rest over tensor 2."""
    job = sw.Train(batch=8, seq=64, remat="none")
    return ArrayNames(
        rebuild(sw.plan(MODEL, sw.hardware("v5e:2x2"), job, {"tensor": 2, "fsdp": 2}))
    )


def held(
    shape: str, scope: str = "", category: str = "temporaries", op_name: str = ""
) -> LiveArray:
    (found,) = parse_shapes(shape)
    return LiveArray(
        bytes=found.bytes,
        shape=found,
        instruction="i",
        op_name=op_name,
        scope=scope,
        category=category,
    )


def test_logits_have_their_name_their_dims_and_their_category(words: ArrayNames) -> None:
    found = words.describe(held("f32[4,64,1024]", "unembed", "activations"))
    assert (found.name, found.letters, found.category) == ("unembed logits", "[B,T,V]", "logits")
    assert found.shape == "fp32[4,64,1024]"


def test_what_layers_keep_is_named_though_a_loop_over_microbatches_is_around(
    words: ArrayNames,
) -> None:
    found = words.describe(held("bf16[2,4,64,512]", op_name="jit(local)/while/body/closed_call"))
    assert found.category == "activations"
    assert "gate" in found.name
    assert "saved by 2 layers" in found.name
    queries = words.describe(held("bf16[2,4,2,64,128]"))  # dims may be laid out in another order
    assert queries.name == "q or attended, saved by 2 layers"


def test_an_input_of_a_product_is_named_by_its_operation(words: ArrayNames) -> None:
    found = words.describe(held("bf16[512,512]", "mlp.up", "gathered weights"))
    assert (found.name, found.letters) == ("mlp.up w_up", "[D,F]")


def test_a_copy_without_a_name_is_the_only_array_with_its_dims(words: ArrayNames) -> None:
    assert words.describe(held("bf16[4,64,1024]")).name == "unembed logits"
    assert words.describe(held("bf16[3,5,7]")).name == ""


def test_sums_of_gradients_of_all_layers_are_named_by_their_weights(words: ArrayNames) -> None:
    found = words.describe(held("f32[2,256,512]"))  # D over fsdp, F over tensor
    assert found.category == "gradients"
    assert found.name == "w_gate or w_up of 2 layers, gradients or updates"


def test_arguments_by_their_place_in_the_state(words: ArrayNames) -> None:
    name = "state['moments'][0].mu['layers'][0]['w_up']"
    assert argument_category(name) == "optimizer"
    assert argument_category("state['weights']['outer']['embedding']") == "weights"
    assert argument_category("batch['tokens']") == "arguments"
    found = words.describe(held("f32[2,256,512]", "", "optimizer", name))
    assert (found.name, found.category) == ("w_up of moments", "optimizer")


def test_equal_arrays_are_one_row() -> None:
    one = describe_unplanned(held("bf16[8,8]", op_name="jit(f)/block/dot"))
    rows = merge_equal(
        [one, one, describe_unplanned(held("bf16[64,64]", op_name="jit(f)/head/dot"))]
    )
    assert [(row.name, row.n) for row in rows] == [("head", 1), ("block", 2)]


@pytest.mark.parametrize(
    ("op_name", "scope"),
    [
        ("jit(step)/jvp(encoder)/mlp/dot_general", "encoder/mlp"),
        ("jit(step)/transpose(jvp(encoder))/while/body/mlp/dot_general", "encoder/mlp"),
        ("jit(step)/jit(main)/dot_general", ""),
        ("", ""),
    ],
)
def test_scopes_of_a_users_own_code(op_name: str, scope: str) -> None:
    assert user_scope(op_name) == scope
