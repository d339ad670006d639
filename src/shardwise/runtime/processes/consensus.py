"""Agreement between the processes of a run."""

from __future__ import annotations

import zlib
from typing import Any

from shardwise.errors import BadInput


def all_agree(vote: bool) -> bool:
    """Return whether `vote` is true in every process; wait until all processes have called this."""
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return vote
    return bool(np.all(_all_gather(np.array(vote))))


def require_equal(**values: Any) -> None:
    """Check that every value is the same in all processes of the run.

    Raises:
        BadInput: the `repr` of a value differs between processes.
    """
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return
    checksums = [zlib.crc32(repr(value).encode()) for value in values.values()]
    table = _all_gather(np.array(checksums, np.uint32)).reshape(-1, len(checksums))
    unequal = [name for name, column in zip(values, table.T, strict=True) if len({*column}) > 1]
    if unequal:
        raise BadInput(
            f"the {len(table)} processes of this run differ in {', '.join(unequal)}: start all "
            "with the same command, except for --process."
        )


def least_of_all(number: int) -> int:
    """Return the least `number` of all processes; wait until all of them have called this."""
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return number
    return int(np.min(_all_gather(np.array(number))))


def _all_gather(array: Any) -> Any:
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(array)
