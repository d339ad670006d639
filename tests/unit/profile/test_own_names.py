"""Operations outside all name scopes: they stay under their own names, and so do stacked arrays."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from shardwise.check.hlo.scopes import model_operation
from shardwise.profile.account import profile_devices, read_devices
from shardwise.profile.messages import message_types
from shardwise.profile.names import primitive, stacked
from shardwise.profile.programs import ProgramOperation, parse_program
from shardwise.profile.result import Profile
from tests.unit.compare.sharded_programs import record

GRADIENTS = "jit(step)/(transpose(jvp())/scatter-add:transpose(jvp(mlp))/dot_general:jvp(head)/sum)"


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        (GRADIENTS, ("mlp+head", "backward")),
        ("jit(f)/(jvp(a)/add:jvp(b)/add)", ("a+b", "forward")),
        ("jit(f)/mlp/bd,df->bf/dot_general", ("mlp", "forward")),
        ("jit(f)/bd,df->bf/dot_general", ("", "forward")),
    ],
)
def test_combined_operations_and_einsums(op_name: str, expected: tuple[str, str]) -> None:
    assert model_operation(op_name) == expected


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        ("jit(f)/transpose(jvp())/dot_general", "dot_general"),
        ("jit(f)/shard_map/broadcast.88", ""),  # of the compiler
        ("jit(f)/while", ""),
        ("jit(f)/jvp()/while/body/jit(dynamic_index_in_dim)/dynamic_slice", ""),  # of lax.scan
        ("params['embed']", ""),
        ("", ""),
    ],
)
def test_primitives(op_name: str, expected: str) -> None:
    assert primitive(op_name) == expected


def test_stacked_arrays() -> None:
    turn = "while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice"
    assert stacked(f"jit(f)/jvp()/{turn}") == "saved activations"
    assert stacked(f"jit(f)/transpose(jvp())/{turn}") == "stacked gradients"
    assert stacked("jit(f)/jvp()/while/body/attn/dynamic_update_slice") == ""


def compiled_loop() -> dict[str, ProgramOperation]:
    """A scan that stacks an array, with the compiler's copies before and after it."""
    proto = message_types()["HloProto"]()
    module = proto.hlo_module
    body = module.computations.add(id=1, root_id=12)
    path = "jit(f)/jvp()/while/body/dynamic_update_slice"
    body.instructions.add(id=10, name="state", opcode="parameter")
    stack = body.instructions.add(
        id=11, name="stack", opcode="dynamic-update-slice", operand_ids=[10]
    )
    stack.metadata.op_name = path
    body.instructions.add(id=12, name="turn", opcode="tuple", operand_ids=[10, 11])
    entry = module.computations.add(id=2, root_id=27)
    rows = [
        (20, "embed", "gather", [], "jit(f)/jvp(embed)/gather"),
        (21, "empty", "broadcast", [], "jit(f)/broadcast.1"),
        (22, "copy.before", "copy", [21], ""),
        (23, "inputs", "tuple", [20, 22], ""),
        (24, "loop", "while", [23], "jit(f)/jvp()/while"),
        (25, "result", "get-tuple-element", [24], ""),
        (26, "copy.after", "copy", [25], ""),
        (27, "norm", "multiply", [26], "jit(f)/jvp(final_norm)/mul"),
    ]
    for number, name, opcode, operands, op_name in rows:
        made = entry.instructions.add(
            id=number, name=name, opcode=opcode, operand_ids=operands, tuple_index=1
        )
        made.metadata.op_name = op_name
        if opcode == "while":
            made.called.append(1)
    return parse_program(proto.SerializeToString()).operations


def test_copies_beside_a_loop_belong_to_what_it_stacks() -> None:
    operations = compiled_loop()
    for name in ("empty", "copy.before", "result", "copy.after"):
        assert operations[name].operation[0] == "saved activations", name
    assert operations["norm"].operation[0] == "final_norm"


@jax.jit
def one_scope(table: jax.Array, tokens: jax.Array, weight: jax.Array) -> jax.Array:
    x = jax.nn.one_hot(tokens, table.shape[0]) @ table  # outside all scopes
    with jax.named_scope("attn"):
        return jnp.tanh(x @ weight)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    folder = tmp_path_factory.mktemp("one_scope")
    table, weight = jnp.ones((1024, 256)), jnp.ones((256, 256))
    tokens = jnp.arange(512)
    record(folder, lambda: one_scope(table, tokens, weight))
    return profile_devices(str(folder), read_devices(str(folder)))


def test_a_product_outside_scopes_is_its_own(embedded: Profile) -> None:
    """It does not belong to the scope beside it, nor to what the model names."""
    flops = {part.name: part.flops for part in embedded.operations if part.category == "matmul"}
    own = [name for name in flops if name.startswith(f"dot_general {Path(__file__).name}:")]
    assert len(own) == 1
    assert flops[own[0]] == 2 * 512 * 1024 * 256
    assert flops["attn"] == 2 * 512 * 256 * 256
    of_product = sum(part.share for part in embedded.operations if part.name == own[0])
    assert embedded.named_share < embedded.operations_share - 0.9 * of_product
