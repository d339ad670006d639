"""FLOPs of attention kernels, by the shapes and the table of blocks that a call states."""

import json

import pytest

from shardwise.check.hlo.text import parse
from shardwise.check.timeline.kernels import attention_cost, call_cost, head_dim, is_attention

CALL = """HloModule attention, is_scheduled=true

ENTRY %main (q: bf16[2,8,4096,128]) -> bf16[2,8,4096,128] {{
  %q = bf16[2,8,4096,128]{{3,2,1,0}} parameter(0)
  ROOT %call = {result} custom-call(%q), {target}, {given}, {named}
}}
"""
SQUARE = 2 * 2 * 8 * 4096 * 4096 * 128  # of one product over all keys
ARRAY = "bf16[2,8,4096,128]{3,2,1,0}"
POSITIONS = ", s32[4096,128]{1,0}"
PARTIAL = "bf16[2,8,8,4096,128]{4,3,2,1,0}"


def call(
    name="splash_mha_fwd_residuals",
    table="",
    result=ARRAY,
    target="tpu_custom_call",
    n_keys=4096,
    positions=POSITIONS,
    values=128,
):
    named = f'metadata={{op_name="jit(f)/{name}/pallas_call"}}'
    keys = ARRAY.replace("2,8,4096", f"2,2,{n_keys}")
    of_values = keys.replace("128]", f"{values}]")
    text = CALL.format(
        result=result,
        target=f'custom_call_target="{target}"',
        given=f"operand_layout_constraints={{{table}{ARRAY}, {keys}, {of_values}{positions}}}",
        named=named,
    )
    return parse(text).entry_computation.instructions["call"]


@pytest.mark.parametrize(
    ("table", "share"),
    [
        ("", 1.0),
        ("s8[1,8,8]{2,1,0}, s8[1,8,8]{2,1,0}, ", 36 / 64),  # causal: 1 + 2 + ... + 8 blocks
        ("s8[1,8,2]{2,1,0}, s8[1,8,2]{2,1,0}, ", 15 / 64),  # a window: 1 + 7 * 2
    ],
)
def test_blocks_outside_the_mask_are_not_computed(table, share):
    assert attention_cost(call(table=table)).flops == 2 * SQUARE * share


def test_blocks_of_more_keys_than_queries():
    """Rows of 512 queries see 1, 1, 2, 2, 3, 3, 4 and 4 blocks of 1,024 keys."""
    table = "s8[1,8,4]{2,1,0}, s8[1,8,4]{2,1,0}, "
    gradients = call("splash_mha_dkv_no_residuals", table, PARTIAL.replace("2,8,8", "2,4,8"))
    assert attention_cost(gradients).flops == 5 * SQUARE * 20 / 32


def test_without_a_mask_every_block_of_a_table_is_computed():
    table = "s8[1,8,8]{2,1,0}, s8[1,8,8]{2,1,0}, "
    segments = f"{POSITIONS}, s32[8,4096]{{1,0}}"
    for positions in ("", segments):
        assert attention_cost(call(table=table, positions=positions)).flops == 2 * SQUARE
    packed = attention_cost(call(table=table, positions=segments + POSITIONS)).flops
    assert packed == 2 * SQUARE * 36 / 64


def test_a_chip_with_a_part_of_the_queries_computes_the_mean_of_all():
    found = attention_cost(call(table="s8[1,8,32]{2,1,0}, ", n_keys=16384)).flops
    assert found == 2 * 4 * SQUARE * (32 * 33 / 2) / 32**2
    assert attention_cost(call(n_keys=16384)).flops == 2 * 4 * SQUARE


@pytest.mark.parametrize(
    ("name", "result", "products"),
    [
        ("splash_mha_fwd_no_residuals", ARRAY, 2),
        ("splash_mha_dq_no_residuals", ARRAY, 3),
        ("splash_mha_dkv_no_residuals", ARRAY, 4),
        ("splash_mha_dkv_no_residuals", PARTIAL, 5),
    ],
)
def test_products_of_each_kernel(name, result, products):
    assert attention_cost(call(name, result=result)).flops == products * SQUARE


@pytest.mark.parametrize(
    ("name", "result", "of_queries", "of_values"),
    [
        ("splash_mha_fwd_no_residuals", ARRAY, 1, 1),
        ("splash_mha_dq_no_residuals", ARRAY, 2, 1),
        ("splash_mha_dkv_no_residuals", ARRAY, 2, 2),
        ("splash_mha_dkv_no_residuals", PARTIAL, 3, 2),
    ],
)
def test_values_may_be_narrower_than_keys(name, result, of_queries, of_values):
    found = attention_cost(call(name, result=result, values=64)).flops
    assert found == (of_queries + of_values / 2) * SQUARE


def test_other_kernels_are_not_attention():
    assert attention_cost(call("my_kernel")) is None
    assert attention_cost(call(target="Sharding")) is None
    assert (head_dim(call()), head_dim(call("my_kernel"))) == (128, 0)


TOKENS_FIRST = "bf16[2,4096,8,128]{3,2,1,0}"


@pytest.mark.parametrize("layout", [ARRAY, TOKENS_FIRST])
@pytest.mark.parametrize(
    ("target", "products"), [("__cudnn$fmhaSoftmax", 2), ("__cudnn$fmhaSoftmaxBackward", 5)]
)
@pytest.mark.parametrize(
    ("mask", "window", "share"),
    [
        ("NO_MASK", 0, 1.0),
        ("CAUSAL", 0, 33 / 64 + 1 / 8192),  # 1 + 2 + ... + 32 tiles of 128, and the diagonal itself
        ("CAUSAL", 512, (512 - 511 * 512 / 8192 + 128) / 4096),
    ],
)
def test_flash_attention_of_cudnn(target, products, mask, window, share, layout):
    config = {
        "intermediate_tensor_shape": {"dimensions": ["2", "8", "4096", "4096"]},
        "mask_type": mask,
        "sliding_window_length": window,
    }
    named = 'metadata={op_name="jit(f)/attn.core/dot_product_attention"}'
    text = CALL.format(
        result=layout,
        target=f'custom_call_target="{target}"',
        given=f"operand_layout_constraints={{{layout}, {layout}, {layout}}}",
        named=f"{named}, backend_config={json.dumps({'cudnn_fmha_backend_config': config})}",
    )
    found = attention_cost(parse(text).entry_computation.instructions["call"]).flops
    assert found == pytest.approx(products * SQUARE * share, rel=1e-3)


@pytest.mark.parametrize(("name", "of_attention"), [("paged_attention", 1), ("grouped_matmul", 0)])
def test_a_kernel_for_gpus_states_its_cost_in_its_name(name, of_attention):
    instruction = call(f"{name}_80flops_7bytes", target="__gpu$xla.gpu.triton")
    cost = call_cost(instruction)
    assert (cost.flops, cost.hbm_bytes, cost.dtype) == (80, 7, "bf16")
    assert is_attention(instruction) == of_attention
    assert len(cost.products) == 1 - of_attention


def test_of_other_calls_the_cost_is_that_of_attention():
    instruction = call()
    assert is_attention(instruction)
    assert call_cost(instruction) == attention_cost(instruction)
    assert not is_attention(call("my_kernel"))
