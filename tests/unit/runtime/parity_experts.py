"""Steps of models with experts, and with latent attention, on one device and on eight.

`python -m tests.unit.runtime.scripts parity_experts NAMES` prints, for each of these runs, the
losses of three steps on one device and the distance from them, as one JSON document.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

from tests.unit.runtime import parity
from tests.unit.runtime.distance import distance
from tests.unit.runtime.expert_cases import LAYOUTS, MODELS, RUNS
from tests.unit.runtime.steps import Trained


@functools.cache
def alone(model: str) -> Trained:
    return parity.train(parity.ONE, MODELS[model])


def main() -> None:
    """Print one object per model and layout."""
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        model, layout = RUNS[name]
        one = alone(model)
        many = parity.train(LAYOUTS[layout], MODELS[model])
        found[name] = {"one": one.losses, **distance(one, many)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
