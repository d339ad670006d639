"""A side of `bench/serve.py` as a process: `python serve_worker.py SIDE DTYPE MODEL FOLDER`.

It says its version, or what is missing, then answers what it reads from stdin. It may run in an
environment without shardwise, so that it imports nothing of it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple, Protocol

MODULES = {
    "shardwise": "serve_ours",
    "transformers": "serve_torch",
    "llama.cpp": "serve_llama",
}


class Generated(NamedTuple):
    """What a side has generated.

    Args:
        tokens: outputs of all prompts.
        first_s: seconds from the prompts to the first token of each output.
        decoded: tokens that came after that, while all outputs went on.
        decode_s: in so many seconds.
    """

    tokens: list[list[int]]
    first_s: float
    decoded: int
    decode_s: float


class Served(NamedTuple):
    """What a side has served to requests that arrived one by one.

    Args:
        ttft_s: seconds from each arrival to the request's first token.
        seconds: from the first arrival to the last token.
    """

    ttft_s: list[float]
    seconds: float


class Side(Protocol):
    """One engine with a model."""

    version: str

    def generate(self, prompts: list[list[int]], output: int) -> Generated:
        """Continue prompts of one length greedily by `output` tokens, past any end of text."""
        ...

    def serve(self, prompts: list[list[int]], output: int, every_s: float) -> Served:
        """Continue prompts greedily by `output` tokens; one arrives each `every_s` seconds."""
        ...


def main(kind: str, dtype: str, model: str, folder: str) -> None:
    """Load a side and answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        module: Any = importlib.import_module(MODULES[kind])
    except ImportError as error:
        answers.write(json.dumps({"missing": f"{error.name} is not installed"}) + "\n")
        return
    side: Side = module.Side(dtype, Path(model), Path(folder))
    answers.write(json.dumps({"version": side.version}) + "\n")
    answers.flush()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        answers.write(json.dumps(getattr(side, method)(**arguments)._asdict()) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
