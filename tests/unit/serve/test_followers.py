"""One engine over several processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from shardwise.runtime.serving.sampling import Draw
from shardwise.serve.device_programs import DevicePrograms
from shardwise.serve.followers import Follower, Leader, decode, encode
from shardwise.simulate.host_tier import Copies
from tests.conftest import ROOT
from tests.unit.serve.model_files.tiny import write_folder
from tests.unit.train.command import environment

PATIENCE_S = 200
ENGINE = ("--sequences", "2", "--chunk", "16", "--context", "64")
ENGINE += ("--host-cache", "1MiB", "--draft", "ngram", "--drafted", "2")
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "prompt": [5, 6, 7] * 8, "logprobs": 3},  # drafted from its repetitions
    {"temperature": 0.7, "seed": 3, "presence_penalty": 0.5},
    {"temperature": 0, "guided_regex": "[a-f]{12}"},
    {"temperature": 0, "prompt": [*range(20, 60)]},  # in chunks
    {"temperature": 0, "prompt": [*range(80, 110)], "echo": True, "logprobs": 1},
]
LOST = """
import socket, sys, time
from shardwise.serve.device_programs import DevicePrograms
from shardwise.serve.followers import Leader
Leader([(socket.create_connection(("127.0.0.1", int(sys.argv[1]))), 7)])
time.sleep(60)
"""


class Calls(DevicePrograms):
    """Programs that only note their calls."""

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept
        self.tell = None

    def _perform_note(self, *arguments: Any) -> None:
        self.kept.append(arguments)


def test_calls_arrive_as_they_were_made() -> None:
    column = np.arange(3, dtype=np.uint32)
    how = Draw(*[column] * 6)  # type: ignore[arg-type]
    matrix = np.arange(6, dtype=np.int32).reshape(2, 3)
    sent = (None, True, matrix, matrix[:, 0] > 2, how, *Copies([(1, 2)], []))
    model, call, received = decode(encode(1, "draw", sent))
    assert (model, call, received[:2], received[5:]) == (1, "draw", [None, True], [[[1, 2]], []])
    np.testing.assert_array_equal(received[2], matrix)
    np.testing.assert_array_equal(received[3], [False, True])
    np.testing.assert_array_equal(Draw(*received[4]).seed_B, column)
    assert [x.dtype for x in received[2:4]] == [np.int32, np.bool_]


def test_a_follower_repeats_the_calls_in_their_order() -> None:
    near, far = socket.socketpair()
    leader, follower = Leader([(near, 1)]), Follower(far)
    noted: list[Any] = []
    repeated: list[Any] = []
    models = [Calls(noted), Calls(noted)]
    leader.lead(models)
    for i in range(10):
        models[i % 2].perform("note", i)
    leader.end()
    follower.follow([Calls(repeated), Calls(repeated)])
    follower.close()
    leader.close()
    assert noted == repeated == [(i,) for i in range(10)]


def test_a_leader_ends_with_its_followers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        leader = subprocess.Popen(
            [sys.executable, "-c", LOST, port], stderr=subprocess.PIPE, text=True
        )
        connection, _ = listener.accept()
        connection.close()
        said = leader.communicate(timeout=PATIENCE_S)[1]
    assert leader.returncode == 4
    assert "another process of this run has ended: this one ends too. Start all" in said
    assert "process 7: its connection has closed" in said


class Served:
    """`shardwise serve` in one process, or in several with four CPU devices each."""

    def __init__(self, folder: Path, processes: int = 1) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        words: tuple[str, ...] = ()
        variables = environment(ROOT / "src")
        command = [sys.executable, "-m", "shardwise", "serve", str(folder), "--port", "0", "--json"]
        if processes > 1:
            variables["XLA_FLAGS"] += " --xla_force_host_platform_device_count=4"
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                at = f"127.0.0.1:{free.getsockname()[1]}"
            words += ("--coordinator", at, "--processes", str(processes), "--process")
        for i in range(processes):
            last = [str(i)] if processes > 1 else []
            process = subprocess.Popen(
                [*command, *ENGINE, *words, *last],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.processes.append(process)
        first = self.processes[0]
        assert first.stdout is not None
        document = "".join(iter(first.stdout.readline, "}\n"))
        self.url = json.loads(document + "}")["url"]

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *failure: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def answers(self) -> list[Any]:
        """The choices of all requests, sent at once."""
        answers: list[Any] = [None] * len(REQUESTS)

        def ask(i: int) -> None:
            body = {"prompt": [9, 8, i], "max_tokens": 20, "ignore_eos": True, **REQUESTS[i]}
            answer = httpx.post(f"{self.url}/completions", json=body, timeout=PATIENCE_S)
            (answers[i],) = answer.json()["choices"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(REQUESTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def end(self) -> None:
        """End by SIGTERM at process 0, after one at each of the others."""
        for process in self.processes[1:]:
            process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert [process.poll() for process in self.processes] == [None] * len(self.processes)
        self.processes[0].send_signal(signal.SIGTERM)
        for process in self.processes:
            said = process.communicate(timeout=PATIENCE_S)[1]
            assert process.returncode == 0, said


@pytest.mark.oracle
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_two_processes_generate_what_one_does(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, num_attention_heads=8)
    with Served(folder) as one:
        expected = one.answers()
        one.end()
    with Served(folder, processes=2) as two:
        found = two.answers()
        two.end()
    for answer, other in zip(found, expected, strict=True):
        assert answer["text"] == other["text"]
    for place, n_tokens in ((1, 20), (5, 50)):
        assert len(found[place]["logprobs"]["tokens"]) == n_tokens
