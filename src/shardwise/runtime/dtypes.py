"""JAX dtypes, by the names that plans use."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from shardwise.errors import BadInput

DTYPES = {
    "fp32": jnp.float32,
    "bf16": jnp.bfloat16,
    "fp16": jnp.float16,
    "int8": jnp.int8,
    "fp8": jnp.float8_e4m3fn,
    "int4": jnp.int4,
}


def dtype(name: str) -> Any:
    """The JAX dtype of a name such as `bf16`.

    Raises:
        BadInput: the runtime does not support the dtype.
    """
    if name not in DTYPES:
        raise BadInput(
            f"dtype {name}: the planner supports it, the runtime does not yet. The runtime "
            f"supports {', '.join(DTYPES)}."
        )
    return DTYPES[name]
