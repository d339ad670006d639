"""Steps of models with experts, and with latent attention, on one device and on eight.

`python -m tests.unit.runtime.parity_experts` prints, for each model and layout, the losses of three
steps and the largest distance of a weight from those of one device, as one JSON document.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from tests.unit.runtime import parity
from tests.unit.runtime.experts import LAYOUTS, MODELS, RUNS

# Half of the time of these runs is LLVM's, on programs that run three times.
os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"


def main() -> None:
    """Print one object per model and layout, one device under the name `one`."""
    found: dict[str, Any] = {}
    for name, model in MODELS.items():
        losses, weights = parity.train(parity.ONE, model)
        found[name] = {"one": {"losses": losses, "apart": 0.0}}
        for words in RUNS[name]:
            got, other = parity.train(LAYOUTS[words], model)
            apart = max(float(np.abs(a - b).max()) for a, b in zip(weights, other, strict=True))
            found[name][words] = {"losses": got, "apart": apart}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
