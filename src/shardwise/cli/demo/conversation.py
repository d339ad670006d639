"""A model served by `shardwise serve`, asked over HTTP as any client of the OpenAI API would."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwise.cli.demo.commands import CommandFailed, Screen, arguments, environment

MAX_TOKENS = 48
TEMPERATURE = 0.7  # of a small model, which repeats itself without chance
# One short sequence needs few programs: it starts sooner.
SMALL_SERVER = ("--sequences", "1", "--context", "256", "--chunk", "64")


def conversation(
    folder: Path, model: str, *, prompt: str = "", message: str = ""
) -> Iterator[Screen]:
    """Serve a model on a free port, let it continue a prompt or answer a message, and stop it.

    Raises:
        CommandFailed: the server did not start, or did not answer.
    """
    words = ("serve", model, *SMALL_SERVER, "--port", "0")
    with _server(folder, words) as ready:
        yield Screen(
            command=f"shardwise {' '.join(words)}",
            output=f"ready in {ready['ready_s']:.1f} s: {ready['url']}\n",
        )
        body: dict[str, Any] = {"model": ready["model"], "max_tokens": MAX_TOKENS}
        if message:
            path = "/chat/completions"
            body |= {"messages": [{"role": "user", "content": message}], "temperature": 0}
        else:
            path = "/completions"
            body |= {"prompt": prompt, "temperature": TEMPERATURE, "seed": 0}
        choice = _post(ready["url"] + path, body)["choices"][0]
        text = choice["message"]["content"] if message else prompt + choice["text"]
        yield Screen(
            command=f"curl {ready['url']}{path} -d '{json.dumps(body)}'",
            output=f"answer {' '.join(text.split())}\n\n{text}\n",
        )


@contextlib.contextmanager
def _server(folder: Path, words: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """A running server: the line that it prints when it is ready."""
    log = folder / "server.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            arguments(*words, "--json"),
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        try:
            yield _ready(server, log)
        finally:
            server.send_signal(signal.SIGTERM)


def _ready(server: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    lines = []
    for line in server.stdout or ():
        lines.append(line)
        with contextlib.suppress(json.JSONDecodeError):
            ready: dict[str, Any] = json.loads("".join(lines))
            if "url" in ready:
                return ready
    raise CommandFailed(log.read_text().strip())


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except OSError as error:
        raise CommandFailed(f"{url}: {error}") from None
