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
    if not accepted or accepts(accepted):
        return accepted
    return {name: value for name, value in accepted.items() if accepts({name: value})}


def accepts(options: Mapping[str, str | bool]) -> bool:
    """Whether a trivial program compiles with the options."""
    try:
        jax.jit(lambda x: x + 1).lower(jnp.zeros(())).compile(compiler_options=dict(options))
    except Exception:  # of whatever kind the version raises
        return False
    return True
