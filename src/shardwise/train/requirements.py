"""What training needs beside the planner."""

from __future__ import annotations

from shardwise.runtime import devices

INSTALL_COMMAND = "pip install 'shardwise[train]'"


def require_jax() -> None:
    """Check that JAX is installed.

    Raises:
        MissingExtra: it is not.
    """
    devices.require_jax("training", INSTALL_COMMAND)
