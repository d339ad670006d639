"""The parser on lines as XLA prints them, with what makes them less than regular."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.check.hlo.shape import parse_shapes
from shardwise.check.hlo.text import parse
from shardwise.errors import BadInput

PROGRAM = (Path(__file__).parent / "lines.hlo").read_text()


def test_the_parts_of_a_module():
    module = parse(PROGRAM)
    assert (module.name, module.entry, module.n_partitions) == ("jit_f", "main.1", 4)
    assert module.aliases == ((0, 1), (2, 0))
    assert module.tiled
    assert list(module.computations) == ["inner", "beside", "main.1"]
    assert module.computations["beside"].thread == "sparsecore"
    assert module.entry_computation.root == "f"
    assert [one.name for one in module.entry_computation.parameters] == ["a", "b"]


def test_an_instruction_over_several_lines_is_one():
    main = parse(PROGRAM).entry_computation
    assert list(main.instructions) == ["b", "a", "k", "c", "w", "i", "f"]
    kernel = main.instructions["k"]
    assert kernel.operands == ("a", "a")
    assert kernel.op_name == "jit(f)/k"
    assert kernel.backend_config["n"] == "3"
    assert kernel.attribute("custom_call_target") == "tpu_custom_call"
    assert kernel.callees == ()


def test_operands_literals_attributes_and_what_is_called():
    main = parse(PROGRAM).entry_computation.instructions
    assert main["c"].literal == "{1, 2}"
    assert main["c"].operands == ()
    assert main["w"].callees == ("beside", "inner")
    assert main["i"].callees == ("inner", "beside")
    assert main["f"].callees == ("inner",)
    assert main["f"].attribute("kind") == "kLoop"
    assert main["f"].integers("dimensions") == (0, 3)
    assert parse(PROGRAM).computations["inner"].instructions["p"].op_name == "p['w']"


def test_leaves_of_nested_tuples():
    leaves = parse(PROGRAM).entry_computation.instructions["b"].shapes
    assert [str(leaf) for leaf in leaves] == ["f32[8]", "s32[]", "bf16[4,4]"]
    assert [leaf.memory_space for leaf in leaves] == [0, 0, 1]


@pytest.mark.parametrize(
    ("text", "n_bytes", "padded"),
    [
        ("f32[8,100]{1,0:T(8,128)}", 3200, 8 * 128 * 4),
        ("f32[8,100]{0,1:T(8,128)}", 3200, 104 * 128 * 4),  # 100 rows of 8 along the lanes
        ("bf16[3,64]{1,0:T(8,128)(2,1)}", 384, 8 * 128 * 2),
        ("bf16[3,64]{1,0:T(4,128)(2,1)}", 384, 4 * 128 * 2),
        ("bf16[4096]{0:T(1024)(128)(2,1)}", 8192, 8192),
        ("s32[]{:T(128)}", 4, 512),
        ("u32[]{:S(2)}", 4, 4),
        ("s8[1,16,16]{2,1,0:T(8,128)(4,1)}", 256, 16 * 128),
        ("s4[16,256]{1,0:T(8,128)(8,1)E(4)}", 2048, 2048),
        ("f32[2,3,100]{2,1,0:T(8,128)}", 2400, 2 * 8 * 128 * 4),
        ("f32[2,3,100]{2,1,0}", 2400, 2400),
        ("f32[<=8]{0}", 32, 32),
        ("pred[7]{0}", 7, 7),
    ],
)
def test_bytes_of_elements_and_of_whole_tiles(text, n_bytes, padded):
    (shape,) = parse_shapes(text)
    assert (shape.bytes, shape.padded_bytes) == (n_bytes, padded)


def test_what_is_no_compiled_program_is_refused():
    with pytest.raises(BadInput, match="starts with"):
        parse("hello")
    with pytest.raises(BadInput, match="no ENTRY"):
        parse("HloModule x\n")
    with pytest.raises(BadInput, match="element type"):
        parse_shapes("f99[2]")
