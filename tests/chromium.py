"""A real browser from tests: chromium without a window, told what to do over a pipe.

The pipe speaks the DevTools protocol: JSON, each message ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PATIENCE = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def found() -> str | None:
    """Where chromium is, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One page of a running browser, and all that it said since it was opened."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int):
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._reading, self._writing = reading, writing
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **values: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def open(self, url: str, width: int, dark: bool, media: str = "") -> None:
        """Show a page at a width, light or dark, and wait until it is there."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.send("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def ask(self, script: str) -> Any:
        """Compute something in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, file: Path) -> None:
        """Take a picture of the whole page."""
        height = self.ask("document.documentElement.scrollHeight")
        width = self.ask("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 16_000), "scale": 1}
        shot = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def print(self, file: Path) -> None:
        """Print the page as PDF."""
        made = self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        file.write_bytes(base64.b64decode(made["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings in the console since the page was opened."""
        said = []
        for event in self.events:
            values = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                said.append(str(values["exceptionDetails"]))
            elif event.get("method") == "Runtime.consoleAPICalled":
                said.append(str(values["args"]))
            elif event.get("method") == "Log.entryAdded":
                said.append(values["entry"]["text"])
        return said

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for since it was opened."""
        asked = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in asked]

    def _next(self) -> dict[str, Any]:
        give_up = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            left = give_up - time.monotonic()
            assert left > 0, "the browser does not answer"
            assert select.select([self._reading], [], [], left)[0], "the browser does not answer"
            part = os.read(self._reading, 1 << 16)
            assert part, "the browser ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start chromium with a profile of its own in a folder, and end it."""
    program = found()
    assert program, "chromium is not installed"
    theirs_in, writing = os.pipe()
    reading, theirs_out = os.pipe()
    # Chromium reads from descriptor 3 and writes to 4.
    shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    command = ["bash", "-c", shell, program, *_FLAGS, f"--user-data-dir={folder}"]
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=errors)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(process, reading, writing)
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE)
        os.close(reading)
        os.close(writing)
