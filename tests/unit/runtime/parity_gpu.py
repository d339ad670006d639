"""Parity of the forms that programs take on GPUs, which the CPU acts.

`python -m tests.unit.runtime.scripts parity_gpu NAMES` prints, for each of these cases, the losses
on one device and the distance from them, as one JSON document. Attention by blocks stands in for
the kernel of cuDNN; the calls are the same.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from shardwise.models import ModelConfig
from shardwise.runtime.kernels import blockwise, cudnn
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import parity, parity_context
from tests.unit.runtime.distance import distance
from tests.unit.runtime.steps import Trained

CONTEXT = parity_context.CASES
CASES: dict[str, tuple[ModelConfig, Layout]] = {
    "interleaved, fsdp": (parity.MODEL, parity.LAYOUTS["interleaved, fsdp"]),
    "1f1b, fsdp, tensor": (
        parity.MODEL,
        parity.LAYOUTS["1f1b, fsdp, tensor, chunks of the loss"],
    ),
    **{
        name: (parity_context.MODELS[CONTEXT[name][0]], CONTEXT[name][1])
        for name in ("gather, tensor, fsdp", "ring, tensor, fsdp, dots", "ring 8, full remat")
    },
}


def act_as_gpus() -> None:
    """Have this process compile what it would compile for GPUs."""
    setattr(RoleMesh, "platform", "gpu")  # noqa: B010
    for module, name, value in (
        (cudnn, "supports_some_keys", lambda *_: True),
        (cudnn, "forward", blockwise.forward),
        (cudnn, "backward", blockwise.backward),
    ):
        setattr(module, name, value)


def train(name: str, layout: Layout | None = None) -> Trained:
    """Some steps of a case's model, on one device without a layout."""
    model = CASES[name][0]
    if model is parity.MODEL:
        return parity.train(layout or parity.ONE)
    return parity_context.train(model, layout or parity_context.layout(Mesh()))


def main() -> None:
    """Print one object per case."""
    one = {name: train(name) for name in sys.argv[1:]}
    act_as_gpus()
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        found[name] = {
            "one": one[name].losses,
            **distance(one[name], train(name, CASES[name][1])),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
