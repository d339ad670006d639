"""The peak against the compiler's own, and what shares memory on lines made for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.check.hlo.memory import CATEGORIES, memory_peak
from shardwise.check.hlo.text import parse
from tests.unit.check.hlo.kept import NAMES, program, told, wrap
from tests.unit.check.hlo.make import B, D, F, L, T, V

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        # Exact but for scalars.
        ("keep_v5e", 1.0),
        ("train_gpu", 1.0),
        ("moe_gpu", 1.0),
        ("pallas_v5e", 1.0),
        # Two results share a buffer that the text does not show to be one.
        ("train_tpu7x", 1.013),
        ("train_v5p", 1.039),
        # The compiler loses a little between buffers.
        ("accumulate_v5e", 0.994),
    ],
)
def test_the_peak_is_the_compilers(name, ratio):
    """Where HBM decides: a TPU's own figure takes the larger of HBM and VMEM, and the other tiny
    programs fit into VMEM."""
    assert memory_peak(program(name)).bytes / told(name)["memory"]["peak_memory"] == pytest.approx(
        ratio, abs=1e-3
    )


@pytest.mark.parametrize(("name", "ratio"), [("ring_cpu", 1.0), ("train_cpu", 1.031)])
def test_of_a_cpu_all_allocations(name, ratio):
    """Its compiler's peak leaves temporaries out; arguments, temporaries and results do not."""
    memory = told(name)["memory"]
    parts = memory["argument_size"] + memory["temp_size"]
    whole = parts + memory["output_size"] - memory["alias_size"]
    assert memory_peak(program(name)).bytes / whole == pytest.approx(ratio, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_buffers_add_up_and_arguments_are_the_compilers(name):
    found = memory_peak(program(name))
    assert sum(each.bytes for each in found.arrays) == found.bytes
    assert sum(found.by_category().values()) == found.bytes
    assert set(found.by_category()) <= set(CATEGORIES)
    # Scalars are padded to 512 bytes on a TPU.
    assert found.arguments == pytest.approx(told(name)["memory"]["argument_size"], abs=1024)
    sizes = [each.bytes for each in found.arrays]
    assert sizes == sorted(sizes, reverse=True)


RESULT_LATER = """
  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  %scores = f32[64,128]{1,0:T(8,128)} custom-call(%a), custom_call_target="scores"
  %small = f32[8,128]{1,0:T(8,128)} custom-call(%scores), custom_call_target="mean"
  %again = f32[32,128]{1,0:T(8,128)} custom-call(%small), custom_call_target="wider"
  ROOT %logits = f32[64,128]{1,0:T(8,128)} custom-call(%again), custom_call_target="logits"
"""


@pytest.mark.parametrize(
    ("tiled", "rows"),
    [
        # Beside a and the memory of the logits: the mean and what is made of it.
        (True, 8 + 64 + 8 + 32),
        # Or the scores and their mean.
        (False, 8 + 64 + 64 + 8),
    ],
)
def test_memory_of_a_result_holds_other_arrays_before_it(tiled, rows):
    """On TPUs the scores, which are dead when the logits are computed, take their memory."""
    module = replace(wrap(RESULT_LATER), tiled=tiled)
    assert memory_peak(module).bytes == rows * 128 * 4


def test_what_the_backward_pass_keeps_is_named():
    """Of every layer its input, and with `keep` the attended heads and the wide activations."""
    tokens = B * T // 2
    full = memory_peak(program("train_v5p")).by_category()["activations"]
    assert full == L * tokens // 2 * D * 2
    kept = memory_peak(program("keep_v5e")).by_category()["activations"]
    assert kept == full + L * tokens * (D // 2 + F // 2) * 2


def test_of_microbatches_what_is_kept_is_named_too():
    """The loop over layers lies in that over microbatches, which adds gradients up."""
    one, found = memory_peak(program("keep_v5e")), memory_peak(program("accumulate_v5e"))
    assert found.by_category()["activations"] == one.by_category()["activations"]
    kept = {b.scope: b.shape.dims for b in found.arrays if b.category == "activations"}
    tokens = (L, B // 2, T)
    assert kept["mlp.up"] == (*tokens, F // 2)
    assert kept["attn.values"] == (*tokens, D // 2)
    sums = [b for b in found.arrays if b.category == "gradients" and b.op_name.endswith("/add")]
    # Of every weight a sum; that of the unembedding is scattered over fsdp after the loop.
    shapes = sorted(b.shape.dims for b in sums if b.shape.dims)  # and the loss
    layers = [(L, D // 2, D // 2)] * 2 + [(L, D // 2, F // 2), (L, F // 2, D // 2)]
    assert shapes == sorted([*layers, (D, V // 2)])


def test_copies_are_named_as_what_they_copy():
    found = [
        b for b in memory_peak(program("accumulate_v5e")).arrays if b.instruction[:4] == "copy"
    ]
    named = {b.scope: b.category for b in found}
    assert named["unembed"] == "logits"
    assert {"attn.q", "attn.out", "mlp.down"} <= set(named)


def test_gathered_weights_and_gradients_are_named():
    found = memory_peak(program("train_v5p"))
    gathered = [each for each in found.arrays if each.category == "gathered weights"]
    assert {each.scope.partition(".")[0] for each in gathered} <= {"attn", "mlp", "unembed"}
    assert any(each.category == "gradients" for each in found.arrays)


def test_the_caller_says_what_arguments_are():
    def category(one):
        return {"w": "weights", "m": "optimizer"}.get(one.op_name[:1], "arguments")

    found = memory_peak(program("train_v5p"), argument_category=category).by_category()
    assert found["optimizer"] == 2 * found["weights"]  # f32 beside bf16
    assert found["arguments"] == B * T // 4 * D * 2


@pytest.mark.parametrize(
    ("body", "n_arrays"),
    [
        # One live result beside the argument at any time, and the result set aside.
        ("%b = S negate(%a)\n %c = S transpose(%b)\n ROOT %r = S transpose(%c)", 4),
        # Element by element: in place of an operand that ends there.
        ("%b = S transpose(%a)\n %c = S negate(%b)\n ROOT %r = S transpose(%c)", 3),
        # Names only.
        ("%b = S bitcast(%a)\n %t = (S, S) tuple(%b, %a)\n"
         " %g = S get-tuple-element(%t), index=0\n ROOT %r = S transpose(%g)", 2),
        # An operand that is read again is kept.
        ("%b = S transpose(%a)\n %c = S negate(%b)\n %d = S add(%c, %b)\n"
         " ROOT %r = S transpose(%d)", 4),
        # The operand of a pair is held to its end.
        ("%b = S transpose(%a)\n %s = (S, S, u32[]) copy-start(%b)\n %c = S transpose(%a)\n"
         " %d = S copy-done(%s)\n %e = S dot(%c, %d)\n ROOT %r = S transpose(%e)", 5),
        # In place.
        ("%b = S transpose(%a)\n %u = f32[1]{0} constant(0)\n %i = s32[] constant(0)\n"
         " %c = S dynamic-update-slice(%b, %u, %i)\n ROOT %r = S transpose(%c)", 3),
    ],
)  # fmt: skip
def test_what_shares_memory(body, n_arrays):
    text = "  %a = S parameter(0)\n " + body
    found = memory_peak(
        wrap(text.replace("S ", "f32[262144]{0} ").replace("(S, S", "(f32[262144], f32[262144]"))
    )
    assert round(found.bytes / MIB, 2) == pytest.approx(n_arrays, abs=0.01)


@pytest.mark.parametrize(("root", "n_arrays"), [("scatter(%p, %k, %u)", 2), ("negate(%p)", 3)])
def test_a_fusion_that_scatters_does_so_in_place(root, n_arrays):
    text = f"""HloModule m, is_scheduled=true

%f (p: f32[262144], u: f32[1], k: s32[1,1]) -> f32[262144] {{
  %p = f32[262144]{{0}} parameter(0)
  %u = f32[1]{{0}} parameter(1)
  %k = s32[1,1]{{1,0}} parameter(2)
  ROOT %s = f32[262144]{{0}} {root}
}}

ENTRY %main (a: f32[262144]) -> f32[262144] {{
  %a = f32[262144]{{0}} parameter(0)
  %b = f32[262144]{{0}} transpose(%a), dimensions={{0}}
  %v = f32[1]{{0}} constant(0)
  %i = s32[1,1]{{1,0}} constant(0)
  %r = f32[262144]{{0}} fusion(%b, %v, %i), kind=kInput, calls=%f
  ROOT %z = (f32[262144], f32[262144]) tuple(%r, {"%r" if n_arrays == 2 else "%b"})
}}
"""
    assert round(memory_peak(parse(text)).bytes / MIB, 2) == pytest.approx(n_arrays, abs=0.01)


def test_a_donated_argument_is_the_result():
    text = """HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, must-alias) }

ENTRY %main (a: f32[262144]) -> f32[262144] {
  %a = f32[262144]{0} parameter(0)
  ROOT %r = f32[262144]{0} negate(%a)
}
"""
    assert memory_peak(parse(text)).bytes == MIB
    assert memory_peak(parse(text.replace("{}: (0, {}, must-alias)", ""))).bytes == 2 * MIB


def test_on_a_tpu_what_lies_in_vmem_is_free():
    body = """  %a = f32[1024,256]{1,0:T(8,128)} parameter(0)
  %b = f32[1024,256]{1,0:T(8,128)S(1)} negate(%a)
  ROOT %r = f32[1024,256]{1,0:T(8,128)} transpose(%b)"""
    assert memory_peak(wrap(body)).bytes == 2 * MIB
