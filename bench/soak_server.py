"""`shardwise serve` with a KV cache of few blocks: `python soak_server.py BLOCKS serve MODEL ...`.

On a CPU the cache has room for all sequences that may run. With fewer blocks, sequences are
preempted and cached prefixes evicted, as on accelerators.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from shardwise import cli
from shardwise.serve import cache_sizes


def main(n_blocks: int, words: list[str]) -> int:
    """Run the command line with a cache of so many blocks."""
    full_size = cache_sizes.forwards_of

    def small(*args: Any, **options: Any) -> list[Any]:
        forwards = full_size(*args, **options)
        return [dataclasses.replace(forward, n_blocks=n_blocks) for forward in forwards]

    cache_sizes.forwards_of = small
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
