"""`shardwise bench` and NVIDIA's aiperf measure the same server, and find the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.golden.terminal import run
from tests.unit.serve.load.fake_server import FakeServer, serving

pytestmark = pytest.mark.oracle

AIPERF = shutil.which("aiperf")
RATE, REQUESTS, OUTPUT = 8, 32, 16
# Medians of 32 requests to a server that waits 200 ms for the first token and 20 ms for others: the
# clients, and the server beside them, need a few ms of CPU time for a request.
TTFT_TOLERANCE = 0.05
TPOT_TOLERANCE = 0.02


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of bytes, which aiperf needs to make prompts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocab = {letter: index for index, letter in enumerate(sorted(alphabet))}
    bytes_tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bytes_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_tokenizer.decoder = decoders.ByteLevel()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    bytes_tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def aiperf(url: str, tokenizer: Path, folder: Path) -> dict[str, Any]:
    """The summary of aiperf for the load of this test."""
    options = {
        "--model": "fake", "--url": url, "--endpoint-type": "chat", "--tokenizer": tokenizer,
        "--request-rate": RATE, "--arrival-pattern": "poisson", "--request-count": REQUESTS,
        "--isl": 64, "--osl": OUTPUT, "--random-seed": 1, "--ui": "none",
        "--artifact-dir": folder,
    }  # fmt: skip
    words = [str(word) for option in options.items() for word in option]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(AIPERF), "profile", *words, "--streaming", "--use-server-token-count"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((folder / "profile_export_aiperf.json").read_text())


@pytest.mark.skipif(AIPERF is None, reason="aiperf is not installed")
def test_the_figures_are_those_of_aiperf(tokenizer: Path, tmp_path: Path) -> None:
    with serving(FakeServer(first_s=0.2, token_s=0.02)) as server:
        theirs = aiperf(server.url, tokenizer, tmp_path / "artifacts")
        options = (
            "--chat", "--rate", f"{RATE}/s", "--requests", f"{REQUESTS}", "--prompt", "64",
            "--output", f"{OUTPUT}", "--json",
        )  # fmt: skip
        said = run("bench", server.url, *options)
    assert said.code == 0, said.err
    (ours,) = json.loads(said.out)["rows"]
    assert ours["requests"] == theirs["request_count"]["avg"] == REQUESTS
    assert ours["output_tokens"] == theirs["total_output_tokens"]["avg"] == REQUESTS * OUTPUT
    for name, metric, tolerance in (
        ("ttft_s", "time_to_first_token", TTFT_TOLERANCE),
        ("tpot_s", "inter_token_latency", TPOT_TOLERANCE),
        ("latency_s", "request_latency", TTFT_TOLERANCE),
    ):
        assert ours[name]["p50"] == pytest.approx(theirs[metric]["p50"] / 1e3, rel=tolerance), name
