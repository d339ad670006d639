"""What a server takes for each request, pass and sequence beside the model's programs.

A server of a tiny model, whose programs take almost no time, is measured by `shardwise bench`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from shardwise.models import ModelConfig
from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.launch import launched
from shardwise.serve.model_files.random_weights import random_model

SEQUENCES = 16
PROMPT, OUTPUT = 8, 32  # tokens; those of prompts are words of a text, and bytes to the server
CONTEXT = 96
PASS_TOKENS = 64
REQUESTS = 48  # of each load
PATIENCE_S = 120.0
SHORTEST_S = 1e-6  # of a figure, which must be above 0
TINY = ModelConfig.dense(n_layers=1, d_model=32, d_ff=32, n_heads=2, n_kv_heads=1, vocab=257)


def measure_server() -> dict[str, float]:
    """Measure a server of a tiny model with one user, and with as many as it serves at once.

    Whole answers are timed: a thread of the server may write several tokens of so fast a model
    together.
    """
    with _serving() as url:
        first_s = _latency_s(url, 1, 1)
        alone_s = _latency_s(url, 1, OUTPUT)
        together_s = _latency_s(url, SEQUENCES, OUTPUT)
    n_passes = OUTPUT - 1
    sequence_s = max((together_s - alone_s) / n_passes / (SEQUENCES - 1), SHORTEST_S)
    return {
        "serving.request": first_s,
        "serving.pass": max((alone_s - first_s) / n_passes - sequence_s, SHORTEST_S),
        "serving.sequence": sequence_s,
    }


@contextmanager
def _serving() -> Iterator[str]:
    """A server of the tiny model, by its address."""
    from shardwise.serve.http.app import App
    from shardwise.serve.http.options import ServerOptions
    from shardwise.serve.http.run import Server
    from shardwise.serve.texts_of_model import texts_of_model

    model = random_model("tiny", TINY, CONTEXT)
    options = EngineOptions(context=CONTEXT, sequences=SEQUENCES, pass_tokens=PASS_TOKENS)
    ports: SimpleQueue[int] = SimpleQueue()
    with launched(model, options) as engine:
        app = App(engine, texts_of_model(model), ServerOptions(port=0))
        server = Server(app, ServerOptions(port=0), lambda host, port: ports.put(port))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{ports.get(timeout=PATIENCE_S)}"
        finally:
            server.end()
            thread.join()


def _latency_s(url: str, users: int, output: int) -> float:
    """Median seconds of an answer of `output` tokens, with some users."""
    command = [sys.executable, "-m", "shardwise", "bench", url, "--concurrency", str(users)]
    command += ["--prompt", str(PROMPT), "--output", str(output), "--requests", str(REQUESTS)]
    command += ["--warmup", str(SEQUENCES), "--text", __file__, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the server of a tiny model was not measured: {done.stderr}")
    return float(json.loads(done.stdout)["rows"][0]["latency_s"]["p50"])
