"""Options of XLA's compiler as plans list them, for the compiler of the present devices."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

# The TPU's compiler accepts boolean options as text; the GPU's does not.
_BOOLEAN = {"true": True, "false": False}

Options = dict[str, str | bool]


def typed(options: Mapping[str, str]) -> Options:
    """The options with booleans for `true` and `false`."""
    return {name: _BOOLEAN.get(value, value) for name, value in options.items()}


def known(options: Mapping[str, str]) -> Options:
    """Those of the options that the compiler of the default device accepts."""
    accepted = typed(options)
    if not accepted or _accepts(accepted):
        return accepted
    return {name: value for name, value in accepted.items() if _accepts({name: value})}


def _accepts(options: Options) -> bool:
    """Whether a trivial program compiles with the options."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(jnp.zeros(())).compile()
    except Exception:  # of whatever kind the version raises
        return False
    return True
