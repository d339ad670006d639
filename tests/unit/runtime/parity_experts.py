"""Steps of models with experts, and with latent attention, on one device and on eight.

`python -m tests.unit.runtime.parity_experts` prints, for each model and layout, the losses of three
steps and the largest distance of a weight from those of one device, as one JSON document.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tests.unit.runtime import parity
from tests.unit.runtime.expert_cases import LAYOUTS, MODELS, RUNS
from tests.unit.runtime.steps import apart

# Half of the time of these runs is LLVM's, on programs that run three times.
os.environ["XLA_FLAGS"] += (
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def main() -> None:
    """Print one object per model and layout, one device under the name `one`."""
    found: dict[str, Any] = {}
    for name in RUNS:
        model = MODELS[name]
        one = parity.train(parity.ONE, model)
        found[name] = {"one": {"losses": one.losses, "apart": 0.0}}
        for words in RUNS[name]:
            got = parity.train(LAYOUTS[words], model)
            found[name][words] = {"losses": got.losses, "apart": apart(one.weights, got.weights)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
