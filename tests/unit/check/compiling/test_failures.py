"""The words of compilers, as far as no small program brings them out of one."""

from __future__ import annotations

from shardwise.check.compiling.failures import classify
from shardwise.check.compiling.result import (
    Allocation,
    BadOption,
    OtherFailure,
    OutOfMemory,
    ShardingError,
)

# The list of the largest buffers in the form that XLA's compiler prints it, sizes shortened.
LISTING = """RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.50G of 15.75G hbm. \
Exceeded hbm capacity by 1.75G.

Total hbm usage >= 18.00G:
    reserved        512.00M
    program          17.50G

  Largest program allocations in hbm:

  1. Size: 8.00G
     Operator: op_name="jit(step)/layers/mlp.up/dot_general" source_file="model.py" source_line=3
     Shape: bf16[32,4096,32768]{2,1,0:T(8,128)(2,1)}
     Unpadded size: 8.00G
     XLA label: fusion.3 = fusion(...)
     Allocation type: HLO temp
     ==========================

  2. Size: 256.50M
     Shape: f32[8192,8192]{1,0:T(8,128)}
     Unpadded size: 256.50M
     Allocation type: HLO temp
     ==========================
"""


def test_the_largest_buffers_are_read_from_the_compilers_list() -> None:
    failure = classify(RuntimeError(LISTING), "compiling")
    assert isinstance(failure, OutOfMemory)
    assert failure.required == 17.5 * 2**30
    assert failure.available == 15.75 * 2**30
    assert failure.buffers == (
        Allocation(
            bytes=8 * 2**30,
            shape="bf16[32,4096,32768]{2,1,0:T(8,128)(2,1)}",
            op_name="jit(step)/layers/mlp.up/dot_general",
        ),
        Allocation(bytes=513 * 2**19, shape="f32[8192,8192]{1,0:T(8,128)}", op_name=""),
    )


def test_out_of_memory_without_numbers_is_still_that() -> None:
    failure = classify(RuntimeError("RESOURCE_EXHAUSTED: Out of memory."), "compiling")
    assert isinstance(failure, OutOfMemory)
    assert failure.required is failure.available is None
    assert failure.text == "RESOURCE_EXHAUSTED: Out of memory."


def test_options_in_the_words_of_each_compiler() -> None:
    words = {
        "INVALID_ARGUMENT: No such compile option: 'xla_a'": "xla_a",
        "INVALID_ARGUMENT: Failed to parse 'many' into flag xla_b: ": "xla_b",
        "INVALID_ARGUMENT: While setting option xla_c, 'x' is not a valid bool value.": "xla_c",
    }
    for text, option in words.items():
        assert classify(RuntimeError(text), "compiling") == BadOption(option=option, text=text)


def test_the_word_sharding_in_a_compilers_error_is_no_sharding_error() -> None:
    text = "INTERNAL: sharding propagation failed"
    assert isinstance(classify(RuntimeError(text), "compiling"), OtherFailure)
    assert isinstance(classify(ValueError(text), "lowering"), ShardingError)
