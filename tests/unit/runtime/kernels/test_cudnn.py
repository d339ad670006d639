"""Which attention goes to cuDNN, where it is installed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models import Attention
from shardwise.runtime.experts import ragged
from shardwise.runtime.kernels import cudnn
from shardwise.runtime.kernels.compute_capability import compiling_for
from shardwise.runtime.layout.mesh import RoleMesh

PLAIN = Attention(n_heads=4, n_kv_heads=2, d_head=64)


def array(width: int = 64, dtype: Any = jnp.bfloat16) -> Any:
    return jax.ShapeDtypeStruct((2, 128, 4, width), dtype)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "version", lambda: 91800)


def test_16_bits_with_its_own_mask_do() -> None:
    assert cudnn.supports(PLAIN, array(), array(), None)
    assert cudnn.supports(replace(PLAIN, window=32), array(), array(), None)


@pytest.mark.parametrize(
    ("a", "q", "v", "mask"),
    [
        (PLAIN, array(dtype=jnp.float32), array(dtype=jnp.float32), None),
        (PLAIN, array(192), array(128), None),  # wide queries and narrow values of latents
        (PLAIN, array(60), array(60), None),
        (PLAIN, array(), array(), jax.ShapeDtypeStruct((1, 1, 128, 128), bool)),
        (replace(PLAIN, window=32, causal=False), array(), array(), None),
    ],
)
def test_others_do_not(a: Attention, q: Any, v: Any, mask: Any) -> None:
    assert not cudnn.supports(a, q, v, mask)


@pytest.mark.parametrize(
    ("capability", "widths"),
    [
        ("8.0", {64, 128}),
        ("9.0", {64, 128, 192, 256}),  # 192: of latents, with narrower values
        ("10.0", {64, 128, 192, 256}),
        ("10.3", {64, 128, 192, 256}),
    ],
)
def test_the_compute_capability_allows_wide_heads(capability: str, widths: set[int]) -> None:
    with compiling_for(capability):
        supported = {
            width
            for width in (64, 100, 128, 192, 256, 320)
            if cudnn.supports(PLAIN, array(width), array(min(width, 128)), None)
        }
        assert cudnn.supports(PLAIN, array(160), array(128), None) == (capability == "9.0")
        assert cudnn.takes_narrow_values(array(192), array(128)) == (192 in widths)
        assert not cudnn.takes_narrow_values(array(192), array(192))
    assert supported == widths
    assert not cudnn.supports(PLAIN, array(256), array(256), None)  # there is no local GPU


def test_without_cudnn_nothing_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "version", lambda: 0)
    assert not cudnn.supports(PLAIN, array(), array(), None)


@pytest.mark.parametrize(
    ("told", "platform"),
    [
        ({"compute_capability": "7.5"}, "old gpu"),  # T4
        ({"compute_capability": "8.0"}, "gpu"),
        ({"compute_capability": "10.3"}, "gpu"),
        ({"compute_capability": "gfx942"}, "gpu"),  # AMD, where no cuDNN is found
        ({}, "gpu"),  # compile-only devices
    ],
)
def test_chips_from_before_its_flash_attention_are_told_apart(
    told: dict[str, str], platform: str
) -> None:
    device = SimpleNamespace(platform="gpu", device_kind="a GPU", **told)
    mesh: Any = SimpleNamespace(devices=np.array([device], dtype=object))
    assert RoleMesh(jax_mesh=mesh, axes={}, sizes={}).platform == platform
    assert platform in ragged.PLATFORMS


def test_values_narrower_than_queries_need_a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with compiling_for("9.0"):
        assert cudnn.takes_narrow_values(array(192), array(128))
        monkeypatch.setattr(cudnn, "version", lambda: 90800)
        assert not cudnn.takes_narrow_values(array(192), array(128))
        assert cudnn.supports(PLAIN, array(192), array(128), None)  # padded, on Hopper
