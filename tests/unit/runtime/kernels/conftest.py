"""What tests of kernels for GPUs share."""

from __future__ import annotations

import pytest

from shardwise.runtime.kernels import cudnn


@pytest.fixture
def with_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN as if it were installed: JAX asks only when the kernel is traced."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(cudnn, "is_installed", lambda: True)
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
