"""What the processes of one run tell each other beside its steps."""

from __future__ import annotations

import zlib
from typing import Any

from shardwise.errors import BadInput


def agreed(mine: bool) -> bool:
    """Whether it is so in all processes; each waits for the others."""
    import jax
    import numpy as np

    return bool(np.all(_gathered(np.array(mine)))) if jax.process_count() > 1 else mine


def same(**about: Any) -> None:
    """That all processes were started alike.

    Raises:
        BadInput: they differ in one of these, by what `repr` writes.
    """
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return
    numbers = [zlib.crc32(repr(value).encode()) for value in about.values()]
    found = _gathered(np.array(numbers, np.uint32)).reshape(-1, len(numbers))
    differ = [name for name, column in zip(about, found.T, strict=True) if len({*column}) > 1]
    if differ:
        raise BadInput(
            f"the {len(found)} processes of this run differ in {', '.join(differ)}: start all with "
            "the same command, but for --process."
        )


def _gathered(mine: Any) -> Any:
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(mine)
