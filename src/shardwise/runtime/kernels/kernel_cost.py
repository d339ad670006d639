"""FLOPs and bytes of a kernel as a part of its name, from which `check` and `profile` read them.

Kernels for TPUs state them as `cost_estimate`, which Pallas drops of kernels for GPUs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_IN_NAME = re.compile(r"_(\d+)flops_(\d+)bytes\b")


class KernelCost(NamedTuple):
    """Cost of one run of a kernel.

    >>> str(KernelCost(flops=8, hbm_bytes=2))
    '_8flops_2bytes'
    """

    flops: int
    hbm_bytes: int

    def __str__(self) -> str:
        return f"_{self.flops}flops_{self.hbm_bytes}bytes"


def of_name(name: str) -> KernelCost | None:
    """The cost in the name of an operation; None if there is none.

    >>> of_name("attn/paged_attention_8flops_2bytes/pallas_call")
    KernelCost(flops=8, hbm_bytes=2)
    """
    found = _IN_NAME.search(name)
    return KernelCost(int(found[1]), int(found[2])) if found else None
