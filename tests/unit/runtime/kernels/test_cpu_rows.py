"""Products with weights stored by output are those of plain matmuls, on all processors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.runtime.kernels import cpu, cpu_rows
from shardwise.runtime.weights.quantized import quantize

INPUTS, OUTPUTS = 48, 40
BF16_ROUNDING = 2.0**-8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("has_bf16_products", [False, True])
@pytest.mark.parametrize("n_tokens", [1, 2, 4, 5, 16, 17, 64, 65])
def test_products(
    monkeypatch: pytest.MonkeyPatch, n_tokens: int, has_bf16_products: bool, dtype: str
) -> None:
    monkeypatch.setattr(cpu, "multiplies_bf16", lambda: has_bf16_products)
    random = np.random.default_rng(n_tokens)
    x_MI = random.normal(size=(n_tokens, INPUTS)).astype(np.float32)
    w_IO = jnp.asarray(random.normal(size=(INPUTS, OUTPUTS)), jnp.float32)
    stored, exact_IO = w_IO.astype(dtype), np.asarray(w_IO.astype(dtype), np.float32)
    if dtype == "int8":
        stored = quantize(w_IO, jnp.int8, (-2,))
        exact_IO = np.asarray(stored.values, np.float32) * np.asarray(stored.scale)
    y_MO = cpu_rows.product("md,df->mf", x_MI, cpu_rows.rows(stored, (-2,)))
    # A matmul with narrow weights rounds its activations to bf16.
    tolerance = 1e-6 if dtype == "float32" else BF16_ROUNDING
    bound = tolerance * (np.abs(x_MI) @ np.abs(exact_IO)).max()
    np.testing.assert_allclose(np.asarray(y_MO), x_MI @ exact_IO, rtol=0, atol=bound)


def test_products_of_bf16_are_a_flag_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, expected in (({"avx2"}, False), ({"avx512_bf16"}, True), ({"amx_bf16"}, True)):
        cpu.multiplies_bf16.cache_clear()
        monkeypatch.setattr(cpu, "_flags", lambda flags=flags: flags)
        assert cpu.multiplies_bf16() == expected
    cpu.multiplies_bf16.cache_clear()
