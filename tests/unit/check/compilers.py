"""Which compilers a test needs: without one it is skipped, and says which extra is missing."""

from __future__ import annotations

import pytest

from shardwise.check.compiling.environment import INSTALL, installed_compilers


def needs(platform: str) -> pytest.MarkDecorator:
    missing = platform not in installed_compilers()
    return pytest.mark.skipif(missing, reason=f"no compiler for {platform}: {INSTALL[platform]}")
