"""A real Chromium, driven over a pair of pipes: no driver program, no port, no network."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--hide-scrollbars", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--remote-debugging-pipe"),
)
TIMEOUT_S = 60.0
# Keys that do something only if they are told with their number, or with their character.
KEYS = {"Tab": {"windowsVirtualKeyCode": 9}, "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"}}
COMPLAINTS = ("error", "warning", "assert")  # of a page's console


class Page:
    """A tab of the browser: it goes to addresses, evaluates JavaScript, and records requests."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.problems: list[str] = []

    def listen(self) -> None:
        """Have the browser report what happens in the tab."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        return self._browser.send(method, params, self._session)

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """Take an event of this tab."""
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in COMPLAINTS:
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def go(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def size(self, width: int, height: int) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def dark(self, *, on: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def run(self, script: str) -> Any:
        """The value of an expression; of what it promises, if it is a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 20) -> Any:
        """The value of an expression as soon as it is true."""
        return self._browser.wait(lambda: self.run(script), script, seconds)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, **KEYS.get(key, {}))

    def type(self, text: str) -> None:
        """Write over what is selected in the focused field."""
        self.send("Input.insertText", text=text)

    def pdf(self) -> bytes:
        """The page as printed."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        self.send("Page.close")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


class Browser:
    """One Chromium with a fresh profile."""

    def __init__(self, folder: str) -> None:
        pipe_in, self._write = os.pipe()
        self._read, pipe_out = os.pipe()
        # Chromium reads commands from 3 and writes answers to 4, which a shell can place.
        placed = [fcntl.fcntl(end, fcntl.F_DUPFD, 5) for end in (pipe_in, pipe_out)]
        place = 'exec "$0" "$@" 3</proc/self/fd/{} 4>/proc/self/fd/{}'.format(*placed)
        command = [CHROMIUM or "chromium", *FLAGS, f"--user-data-dir={folder}"]
        self.process = subprocess.Popen(
            ["sh", "-c", place, *command],
            pass_fds=placed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (pipe_in, pipe_out, *placed):
            os.close(end)
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        rest = b""
        while chunk := os.read(self._read, 1 << 16):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers[message["id"]].put(message)
                elif page := self._pages.get(message.get("sessionId", "")):
                    page.heard(message["method"], message["params"])

    def send(self, method: str, params: dict[str, Any], session: str = "") -> Any:
        number = next(self._numbers)
        self._answers[number] = queue.Queue()
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        reply = self._answers[number].get(timeout=TIMEOUT_S)
        del self._answers[number]
        if "error" in reply:
            raise AssertionError(f"{method}: {reply['error']}")
        return reply["result"]

    def page(self) -> Page:
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        session = attached["sessionId"]
        page = self._pages[session] = Page(self, session)
        page.listen()
        return page

    def wait(self, condition: Callable[[], Any], what: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds:g} s: {what}")

    def close(self) -> None:
        with contextlib.suppress(AssertionError, OSError, queue.Empty):
            self.send("Browser.close", {})
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._write)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser for the time of the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        opened = Browser(folder)
        try:
            yield opened
        finally:
            opened.close()
